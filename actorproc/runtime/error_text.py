"""Text of errors that user code or user data made: never fails, bounded in length, encodable as UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from actorproc.errors import ActorprocError

TEXT_LIMIT = 16 * 2**10
"""Characters of a text that are kept."""

GROUP_LIMIT = 3
"""Errors of an exception group that its text names."""

_FRAMEWORK = {"actorproc", "anyio", "asyncio", "contextlib", "importlib"}


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of user code on, or the whole traceback if it has none."""
    trace = error.__traceback__
    while trace is not None and _is_framework(trace):
        trace = trace.tb_next
    return trace or error.__traceback__


def _is_framework(trace: TracebackType) -> bool:
    return trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _FRAMEWORK


def storable(text: str) -> str:
    """The text with lone surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_message(error: BaseException) -> str:
    """Its message, without its type."""
    return _render(error, _group_message if isinstance(error, BaseExceptionGroup) else str)


def format_error(error: BaseException) -> str:
    """Its type and message. Not its `repr`, which may show secrets, such as a token in the headers of a request."""
    return f"{type(error).__name__}: {error_message(error)}".removesuffix(": ")


def describe_error(error: BaseException) -> str:
    """Its type and message, and the user's function that raised it, if any did."""
    text, trace = format_error(error), user_traceback(error)
    if isinstance(error, ActorprocError) or trace is None or _is_framework(trace):
        return text
    code = trace.tb_frame.f_code
    return f"{text} (in {code.co_qualname}, {code.co_filename}:{trace.tb_lineno})"


def safe_repr(value: object) -> str:
    """Its `repr`, or a note that it has none."""
    return _render(value, repr)


def _group_message(group: Any) -> str:
    more = len(group.exceptions) - GROUP_LIMIT
    messages = "; ".join(format_error(error) for error in group.exceptions[:GROUP_LIMIT])
    return f"{group}: {messages}{f'; and {more} more' if more > 0 else ''}"


def _render(value: object, render: Callable[[Any], str]) -> str:
    try:
        text = render(value)
    except Exception as error:  # noqa: BLE001  # `__str__` and `__repr__` are user code, too
        return f"({type(value).__name__} has no text: {type(error).__name__})"
    return storable(text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({len(text)} characters)")
