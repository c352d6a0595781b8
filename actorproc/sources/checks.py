"""Whether an object can be used as a source: what is certainly wrong with its methods is said at the start, by name."""

from __future__ import annotations

import inspect
from types import FunctionType

from actorproc.errors import UsageError
from actorproc.handler.checks import mismatch
from actorproc.sources.protocol import Source

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "open": (),
    "close": (),
    "register": ("processor", "container"),
    "partitions": (),
    "start": ("partition", "at"),
    "end": ("partition",),
    "read": ("partition", "position"),
    "read_within": ("partition", "position", "room"),
    "sequence_before": ("partition", "position"),
    "reached": ("cursor", "end"),
}


def signature(method: str) -> str:
    """Name and arguments of a method of `Source`, as its definition must have them."""
    return f"{method}({', '.join(('self', *_ARGUMENTS[method]))})"


def reading_method(source: Source) -> str:
    """Which of its methods is called for records: its own."""
    own_within = getattr(source.read_within, "__func__", None) is not Source.read_within
    return "read_within" if own_within else "read"


def check_methods(source: Source) -> None:
    """Refuse what cannot work, whatever it does. That a plain def gives nothing that can be awaited is seen when it is called.

    Raises:
        UsageError: names the method, what it is and what it must be.
    """
    kind = type(source).__name__
    reads = reading_method(source)
    for method in _ARGUMENTS.keys() - ({"read", "read_within"} - {reads}):
        _check_arguments(source, kind, method)
    found = getattr(source, reads)
    if inspect.iscoroutinefunction(found):
        raise UsageError(
            f"the source's {kind}.{reads} has no yield in it; it must be an async generator: `async def {signature(reads)}` "
            "that yields chunks"
        )
    if inspect.isgeneratorfunction(found):
        raise UsageError(
            f"the source's {kind}.{reads} is a plain def; it must be an async generator: `async def {signature(reads)}`"
        )
    for method in ("sequence_before", "reached"):
        found = getattr(source, method)
        if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
            raise UsageError(
                f"the source's {kind}.{method} is async; it must be a plain `def {signature(method)}`: it is not awaited"
            )
    if isinstance(inspect.getattr_static(source, "identity", None), (FunctionType, classmethod, staticmethod)):
        raise UsageError(f"the source's {kind}.identity is a method; it must be a text: write @property above it")


def _check_arguments(source: Source, kind: str, method: str) -> None:
    name, found = f"the source's {kind}.{method}", getattr(source, method)
    if not callable(found):
        raise UsageError(f"{name} is no method, but {found!r:.200}; it must be `{signature(method)}`")
    # A decorator may well add arguments of its own, so what it has wrapped says nothing.
    if (wrong := mismatch(found, len(_ARGUMENTS[method]), follow_wrapped=False)) is not None:
        given = "self, " if inspect.ismethod(found) else ""
        takes = f"({given}{wrong[1:]}".replace(", )", ")")
        raise UsageError(f"{name} takes {takes}; it must take {signature(method).removeprefix(method)}")
