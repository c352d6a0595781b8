"""What Typer says of a mistyped command line, with what it leaves out: the value, and what may have been meant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OF_ALL = ("--log-level", "--debug", "--version")


@contextmanager
def better_told() -> Iterator[None]:
    """While inside, an error of Typer's says more. What it is of differs: of click, or of the copy that newer Typers have."""
    try:
        yield
    except Exception as error:
        if isinstance(getattr(error, "message", None), str):
            _say_more(error)
        raise


def _say_more(error: Any) -> None:
    kind = type(error).__name__
    if kind == "NoSuchOption" and error.option_name in _OF_ALL:
        error.message += f". It comes before the command: actorproc {error.option_name} ... COMMAND"
    elif kind == "BadParameter" and (value := _refused_value(error.__cause__)) is not None:
        message = error.message.removeprefix("Value error, ")
        error.message = message if value in message else f"{value}: {message}"


def _refused_value(cause: BaseException | None) -> str | None:
    """What newer Typers do not say of what pydantic has refused for them."""
    if type(cause).__name__ != "ValidationError":
        return None
    found: Any = cause
    return repr(found.errors()[0]["input"])
