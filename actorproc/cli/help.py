"""Commands whose help shows no value behind a flag, which takes none (newer Typers write `--yes <bool>`), and whose errors say more."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from actorproc.cli.mistakes import better_told


class Command(TyperCommand):
    """A command."""

    def make_context(self, *args: Any, **how: Any) -> Any:
        with better_told():
            return super().make_context(*args, **how)

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def make_context(self, *args: Any, **how: Any) -> Any:
        with better_told():
            return super().make_context(*args, **how)

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


def _plain(parameters: Any) -> Any:
    """Here, as Typer adds flags of its own, such as `--help`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
