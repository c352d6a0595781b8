"""Commands with plain help texts that fit the terminal, and usage errors in one line.

Typer has its own copy of Click or uses the installed one, by version. So errors are recognized by the names of their
classes.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup

from actorproc.errors import UsageError

_WIDEST = 120
_NARROW = 72  # below this width an option's help goes below the option
_LEFT = 30  # characters of the left column, if it is not narrow
_ROOT_OPTIONS = ("--debug", "--log-format", "--log-level", "--version")


class Command(TyperCommand):
    """A command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_of(self, ctx))


class Group(TyperGroup):
    """A group of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_of(self, ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            hint = _did_you_mean(args[0], list(self.commands)) or f"; there are: {', '.join(self.list_commands(ctx))}"
            raise UsageError(f"no command {args[0]!r} in {ctx.command_path}{hint}")
        return super().resolve_command(ctx, args)


def message_of(error: Any) -> str | None:
    """What a usage error of Click's says, in one line of ours; None if `error` is another exception."""
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
    return str(param.opts[0] if param.param_type_name == "option" else _metavar(param))


def _or_variable(param: Any) -> str:
    variable = getattr(param, "envvar", None)
    return f": give it, or set {variable}" if variable else ""


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def help_of(command: Any, ctx: Any) -> str:
    """The help of a command: usage, text with examples, options, commands. Nothing is wider than the terminal."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    usage = " ".join(["Usage:", ctx.command_path, *_usage(command)])
    lines = [*textwrap.wrap(usage, width, subsequent_indent="  ", break_on_hyphens=False), ""]
    lines += _text(command.help or "", width)
    arguments = [param for param in command.params if param.param_type_name == "argument" and param.help]
    options = [param for param in command.get_params(ctx) if param.param_type_name == "option" and not param.hidden]
    sections = {
        "Arguments": [(_metavar(param), param.help) for param in arguments],
        "Options": [(_option(param), _facts(param)) for param in options],
    }
    if isinstance(command, TyperGroup):
        names = command.list_commands(ctx)
        sections["Commands"] = [(name, _first_sentence(command.commands[name].help or "")) for name in names]
    for heading, entries in sections.items():
        if entries:
            lines += ["", f"{heading}:", *_columns(entries, width)]
    if command.epilog:
        lines += ["", *textwrap.wrap(command.epilog, width)]
    return "\n".join(lines) + "\n"


def _usage(command: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for param in command.params:
        if param.param_type_name == "argument":
            name = _metavar(param) + ("..." if param.nargs == -1 else "")
            yield name if param.required else f"[{name}]"
    if isinstance(command, TyperGroup):
        yield "COMMAND ..."


def _text(text: str, width: int) -> Iterator[str]:
    """Paragraphs wrapped. A paragraph that begins with a backspace holds examples, which can be copied as they are."""
    for index, paragraph in enumerate(textwrap.dedent(text).strip().split("\n\n")):
        if index:
            yield ""
        if paragraph.startswith("\b\n"):
            for line in paragraph.splitlines()[1:]:
                yield from example(line, width)
        else:
            yield from textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)


def example(line: str, width: int) -> list[str]:
    """A command of an example, broken by backslashes where it does not fit."""
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    lines = [indent]
    for word in re.findall(r"(?:-[^\s]+ [^\s'\"-][^\s'\"]*|[^\s'\"]*'[^']*'|\S+)", line):
        if len(lines[-1]) + len(word) + 3 > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(f"{indent}    {word}")
        else:
            lines[-1] += word if not lines[-1].strip() else f" {word}"
    return lines


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _option(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {_metavar(param)}"


def _facts(param: Any) -> str:
    facts = ["required"] if param.required else []
    if param.envvar:
        facts.append(f"variable {param.envvar}")
    if isinstance(param.default, (str, int, float)) and not param.is_flag:
        facts.append(f"default {param.default}")
    note = f" [{', '.join(facts)}]" if facts else ""
    return f"{param.help or ''}{note}"


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).partition(". ")[0].rstrip(".:") + "."


def _columns(entries: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    left = 6 if width < _NARROW else min(max(len(name) for name, _ in entries), _LEFT) + 4
    for name, text in entries:
        wrapped = textwrap.wrap(text, width - left, break_on_hyphens=False, break_long_words=False) or [""]
        if len(name) + 4 <= left:
            yield f"  {name:<{left - 2}}{wrapped.pop(0)}".rstrip()
        else:
            yield from textwrap.wrap(name, width - 2, initial_indent="  ", subsequent_indent="    ")
        yield from (" " * left + line for line in wrapped)
