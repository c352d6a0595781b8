"""Usage errors in one line.

Typer has its own copy of Click or uses the installed one, by version. So errors are recognized by the names of their
classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup

from actorproc.errors import UsageError

_ROOT_OPTIONS = ("--debug", "--log-format", "--log-level", "--version")


class Group(TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            hint = (
                _did_you_mean(args[0], self.list_commands(ctx)) or f"; there are: {', '.join(self.list_commands(ctx))}"
            )
            raise UsageError(f"no command {args[0]!r} in {ctx.command_path}{hint}")
        return super().resolve_command(ctx, args)


def message_of(error: Any) -> str | None:
    """The message of a usage error of Click's, as one line of ours; None if `error` is another exception."""
    if not isinstance(getattr(error, "message", None), str) or not hasattr(error, "format_message"):
        return None
    ctx = error.ctx
    path = ctx.command_path if ctx else "actorproc"
    return f"{_problem(error, ctx)} (see {path} --help)"


def _problem(error: Any, ctx: Any) -> str:
    match type(error).__name__:
        case "NoSuchOption" if error.option_name in _ROOT_OPTIONS:
            return f"{error.option_name} goes before the command: actorproc {error.option_name} ... COMMAND"
        case "NoSuchOption":
            known = [name for param in ctx.command.params for name in param.opts]
            return f"no option {error.option_name}{_did_you_mean(error.option_name, known)}"
        case "MissingParameter":
            return f"missing {_name_of(error.param)}{_or_variable(error.param)}"
        case "BadParameter":
            return f"{_name_of(error.param)}: {error.message}"
        case "BadOptionUsage":
            return f"{error.option_name} needs a value"
    if extra := re.search(r"unexpected extra argument\w*(?:\(s\))? \((.*)\)", error.message):
        return f"unexpected argument {extra[1]!r}"
    return str(error.format_message())


def _name_of(param: Any) -> str:
    if param is None:
        return "the arguments"
    return str(param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper())


def _or_variable(param: Any) -> str:
    variable = getattr(param, "envvar", None)
    return f": give it, or set {variable}" if variable else ""


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
