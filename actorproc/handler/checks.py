"""Whether a class can be used as a handler: what is missing or wrong is said at the start, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler


def checked_handler(handler: object) -> type[PartitionHandler]:
    """`handler`, if it can be used as one.

    Raises:
        HandlerDefinitionError: names what is missing or wrong.
    """
    if not inspect.isclass(handler):
        raise HandlerDefinitionError(f"{handler!r} is no class; give a subclass of actorproc.PartitionHandler")
    name = handler.__name__
    if not issubclass(handler, PartitionHandler):
        raise HandlerDefinitionError(f"{name} must subclass actorproc.PartitionHandler")
    if handler.process is PartitionHandler.process:
        raise HandlerDefinitionError(f"{name} has no process(self, batch, ctx)")
    if getattr(handler, "__abstractmethods__", None):
        missing = ", ".join(sorted(handler.__abstractmethods__))  # type: ignore[attr-defined]
        raise HandlerDefinitionError(f"{name} is abstract: it has no {missing}")
    _check_spelling(handler)
    for method, arguments in handler._arguments.items():
        _check_method(handler, method, arguments)
    _check_kinds(handler)
    _check_class_method(handler, "schema_for", "@classmethod above def schema_for(cls, options)")
    _check_class_method(
        handler,
        "shared",
        "@classmethod, then @asynccontextmanager, above async def shared(cls, options) with one yield",
    )
    if (wrong := mismatch(handler, 0)) is not None:
        raise HandlerDefinitionError(
            f"{name}.__init__ takes {wrong}, but one instance is made for each partition, without arguments: take what it "
            "needs from ctx.options or ctx.shared, in opened(self, ctx)"
        )
    options: object = handler.Options
    if not _is_model(options):
        raise HandlerDefinitionError(
            f"{name}.Options must be a pydantic model, a subclass of pydantic.BaseModel, and is {options!r}"
        )
    return handler


def is_ready_made(handler: type[PartitionHandler]) -> bool:
    """Whether its `process` is one of those that we ship, none of which commits."""
    return str(getattr(handler.process, "__module__", "")).startswith("actorproc.handlers.")


def _check_spelling(handler: type[PartitionHandler]) -> None:
    """A name that is ours but for case or underscores, as outputSchema is, would not be looked at."""
    ours = {name for name in dir(PartitionHandler) if not name.startswith("_")}
    bare = {name.replace("_", "").lower(): name for name in ours}
    for kind in handler.__mro__:
        own = vars(kind) if issubclass(kind, PartitionHandler) else {}  # what others bring along is theirs to name
        for name, value in own.items():
            meant = bare.get(name.replace("_", "").lower())
            if meant is None or name.startswith("_") or name in ours:
                continue
            given = inspect.getattr_static(handler, meant) is not inspect.getattr_static(PartitionHandler, meant)
            fits = _is_model(value) if meant == "Options" else not inspect.isclass(value)
            if fits and not given:
                raise HandlerDefinitionError(f"{kind.__name__}.{name} is not looked at: its name must be {meant}")


def _is_model(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseModel)


def _check_method(handler: type[PartitionHandler], method: str, arguments: tuple[str, ...]) -> None:
    name, wanted = f"{handler.__name__}.{method}", f"(self, {', '.join(arguments)})"
    found = inspect.getattr_static(handler, method)
    if not callable(getattr(handler, method)):
        raise HandlerDefinitionError(f"{name} is no method; write def {method}{wanted}")
    bound = found.__get__(object()) if hasattr(found, "__get__") else found  # as an instance has it
    if (wrong := mismatch(bound, len(arguments))) is not None:
        given = "" if bound is found else "self, "
        raise HandlerDefinitionError(f"{name} takes ({given}{wrong[1:]}; it must take {wanted}".replace(", )", ")"))


def _check_kinds(handler: type[PartitionHandler]) -> None:
    """Which are async def, and which must not be."""
    name = handler.__name__
    for hook in ("opened", "closing"):
        if not inspect.iscoroutinefunction(getattr(handler, hook)):
            arguments = ", ".join(("self", *handler._arguments[hook]))
            raise HandlerDefinitionError(f"{name}.{hook} must be async def {hook}({arguments})")
    if inspect.iscoroutinefunction(handler.on_error):
        raise HandlerDefinitionError(f"{name}.on_error must be a plain def: it is not awaited")
    if inspect.isgeneratorfunction(handler.process) or inspect.isasyncgenfunction(handler.process):
        raise HandlerDefinitionError(
            f"{name}.process has a yield in it, so calling it would run nothing: emit rows with ctx.emit(record, row), or "
            "write a RecordHandler, whose process_record may yield rows"
        )


def _check_class_method(handler: type[PartitionHandler], method: str, right: str) -> None:
    name = f"{handler.__name__}.{method}"
    found = inspect.getattr_static(handler, method)
    if not isinstance(found, classmethod | staticmethod):
        owner = getattr(found, "__self__", None)
        another = f". That of {owner.__name__} comes by inheritance" if isinstance(owner, type) else ""
        raise HandlerDefinitionError(f"{name} must be a class method: write {right}{another}")
    if method == "shared" and not _gives_context(found.__func__):
        raise HandlerDefinitionError(f"{name} must be an async context manager: write {right}")
    if (wrong := mismatch(getattr(handler, method), 1)) is not None:
        raise HandlerDefinitionError(f"{name} takes {wrong} on the class: write {right}")


def _gives_context(function: Callable[..., Any]) -> bool:
    """Whether calling it may give an async context manager, as far as can be told."""
    plain = inspect.unwrap(function)
    if inspect.isasyncgenfunction(plain):
        return plain is not function
    return not (inspect.isgeneratorfunction(plain) or inspect.iscoroutinefunction(function))


def mismatch(function: Callable[..., Any], arguments: int, *, follow_wrapped: bool = True) -> str | None:
    """The signature, if it cannot be called with so many arguments. `follow_wrapped`: that of what a decorator has wrapped."""
    try:
        signature = inspect.signature(function, follow_wrapped=follow_wrapped)
    except ValueError:
        return None  # made in C: it does not say
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return str(signature)
    return None
