"""Checks at the start whether a class can be used as a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.state_kinds import state_kinds


def checked_handler(handler: object) -> type[PartitionHandler]:
    """`handler`, if it can be used as one.

    Raises:
        HandlerDefinitionError: names each missing or wrong part.
    """
    if not inspect.isclass(handler):
        raise HandlerDefinitionError(f"{handler!r} is not a class; give a subclass of actorproc.PartitionHandler")
    name = handler.__name__
    if not issubclass(handler, PartitionHandler):
        raise HandlerDefinitionError(f"{name} must subclass actorproc.PartitionHandler")
    if handler.process is PartitionHandler.process:
        raise HandlerDefinitionError(f"{name} has no process(self, batch, ctx)")
    if missing := getattr(handler, "__abstractmethods__", None):
        raise HandlerDefinitionError(f"{name} is abstract: it has no {', '.join(sorted(missing))}")
    if inspect.isgeneratorfunction(handler.process) or inspect.isasyncgenfunction(handler.process):
        raise HandlerDefinitionError(  # a call would run nothing, and its batch would pass for processed
            f"{name}.process contains a yield, so calling it would run nothing: emit rows with "
            "ctx.emit(record, row), or write a RecordHandler, whose process_record may yield rows"
        )
    for method, arguments in handler._arguments.items():
        _check_method(handler, method, arguments)
    for method in ("schema_for", "shared"):
        if not isinstance(inspect.getattr_static(handler, method), classmethod | staticmethod):
            raise HandlerDefinitionError(f"{name}.{method} must be a @classmethod with the arguments (cls, options)")
    if not _accepts(handler, 0):
        raise HandlerDefinitionError(
            f"{name}.__init__ needs arguments, but each partition makes an instance without any: take them from "
            "ctx.options or ctx.shared, in opened(self, ctx)"
        )
    options: object = handler.Options
    if not inspect.isclass(options) or not issubclass(options, BaseModel):
        raise HandlerDefinitionError(f"{name}.Options must be a subclass of pydantic.BaseModel; it is {options!r}")
    state_kinds(handler)
    return handler


def is_ready_made(handler: type[PartitionHandler]) -> bool:
    """Whether `process` comes from `actorproc.handlers`, where no handler commits by itself."""
    return str(getattr(handler.process, "__module__", "")).startswith("actorproc.handlers.")


def _check_method(handler: type[PartitionHandler], method: str, arguments: tuple[str, ...]) -> None:
    """A method with other arguments would fail for each record, and dead-letter them all."""
    name, expected = f"{handler.__name__}.{method}", f"{method}({', '.join(('self', *arguments))})"
    function = inspect.getattr_static(handler, method)
    bound = function.__get__(object()) if hasattr(function, "__get__") else function  # without `self`
    if not callable(bound) or not _accepts(bound, len(arguments)):
        raise HandlerDefinitionError(f"{name} must accept the arguments of {expected}")
    is_async = inspect.iscoroutinefunction(getattr(handler, method))
    if method in ("opened", "closing", "committed") and not is_async:
        raise HandlerDefinitionError(f"{name} must be async def {expected}")
    if method == "on_error" and is_async:
        raise HandlerDefinitionError(f"{name} must be a plain def: it is not awaited")


def _accepts(function: Callable[..., Any], arguments: int) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True  # written in C, without a signature
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True
