"""Registered readers of an output or log, and the numbers below which nothing is retained: one document.

Because both are in one object, a reader that registers and a trim that is decided cannot miss each other.
Protocol: docs/protocol.md. Model: tests/protocol/trim_model.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from itertools import count
from operator import index
from pathlib import Path
from typing import Literal, Self, SupportsIndex

import msgspec
from msgspec.structs import replace

from actorproc.errors import UsageError
from actorproc.retention.boundary import Boundaries
from actorproc.storage.document import MOST_NUMBER, Document, SharedDocument
from actorproc.storage.names import checked_name
from actorproc.storage.store import Conflict, Store
from actorproc.stores import own_url

Kind = Literal["spark", "processor", "position"]

_WAY_OUT: Mapping[Kind, str] = {
    "spark": "Use a new checkpointLocation, which begins with the data that is left",
    "processor": "Use another processor name, which begins with the data that is left",
    "position": "Begin there or later",
}


class Reader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered reader, and where its position is found. Made by `spark`, `of_processor` and `at`."""

    kind: Kind
    name: str = ""
    url: str = ""
    """Of the Spark checkpoint, or of the processor's container."""
    processor: str = ""
    stream: str = ""
    """Identity of the stream that the processor reads; "": the one in which it is registered."""
    positions: dict[str, int] = {}
    """Next number by partition, for a reader whose positions are moved by hand."""
    query: str = ""
    """MODULE:FUNCTION of the query that owns the Spark checkpoint; "" if unknown."""

    @classmethod
    def spark(cls, name: str, checkpoint: str | os.PathLike[str], query: str = "") -> Self:
        """A Spark query with this `checkpointLocation`. It retains everything until its first micro-batch is done."""
        return cls("spark", checked_name("reader name", name), url=_checkpoint_url(checkpoint), query=query)

    @classmethod
    def of_processor(
        cls, container: str | os.PathLike[str], processor: str, stream: str = "", *, name: str | None = None
    ) -> Self:
        """A processor. It retains all of a partition that it has not claimed yet."""
        name = checked_name("reader name", name or processor)
        processor = checked_name("processor name", processor)
        return cls("processor", name, _checkpoint_url(container), processor, stream)

    @classmethod
    def at(cls, name: str, positions: Mapping[str, SupportsIndex]) -> Self:
        """Any other reader; its user moves its positions. It retains all of a partition without a position.

        Raises:
            UsageError: a position is not a whole number, or is negative.
        """
        numbers = {str(partition): _number(name, partition, number) for partition, number in positions.items()}
        return cls("position", checked_name("reader name", name), positions=numbers)

    def is_same(self, other: Reader) -> bool:
        """Whether both have the same position, because it is read from the same place."""
        return (self.kind, self.url, self.processor) == (other.kind, other.url, other.processor)

    def __str__(self) -> str:
        match self.kind:
            case "spark":
                return f"Spark checkpoint {self.url}"
            case "processor":
                return f"processor {self.processor} at {self.url}"
            case "position":
                return "moved by hand"


class Redo(msgspec.Struct, frozen=True, array_like=True):
    """A redelivery of one partition, from commit `start` on."""

    term: str
    start: int


class SinkPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition of a sink: numbers of commits. See tests/protocol/sink_model.py."""

    start: int = 0
    """The first commit that the sink gets."""
    gen: int = 0
    """The sink's progress counts for a trim only with this generation: its position may fall."""
    held: int = 0
    """A trim stays below it until the progress has the generation."""
    redos: tuple[Redo, ...] = ()
    """All redeliveries, oldest first. The sink's row tells which of them have begun."""


class SinkEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered sink."""

    url: str
    """Of the target, without credentials."""
    life: int
    """Counts the registrations of this name."""
    term: str
    """Random."""
    parts: dict[str, SinkPart] = {}
    paused: bool = False
    pause: str = ""
    """Of the latest pause. Random, so that what was made for an earlier one does not count."""
    ordered: bool = False
    """A redelivery of a partition is one of all that follow it."""
    table: Literal["", "beside", "within"] = ""
    """A table that names the files of the output: none is deleted that it names. `within`: it is in their folder, and
    names only files there."""
    replaces: bool = False
    """Rows that a reset takes back leave the table: whoever makes its transactions does it alike."""
    fixed: str = ""
    """What else hosts must have alike, such as the mode. "": registered by an earlier version."""

    def part(self, partition: str) -> SinkPart:
        """A partition that has come after the registration is delivered from its first commit on."""
        return self.parts.get(partition, SinkPart())


WITH_SINKS = 2
"""Format version of a registry that has sinks: an earlier release would drop them."""


class Registry(Document, frozen=True):
    """The readers and sinks by name; and `lowest`: the numbers by partition below which nothing is retained."""

    newest_format_version = WITH_SINKS

    readers: dict[str, Reader]
    lowest: dict[str, int]
    sinks: dict[str, SinkEntry] = msgspec.field(default_factory=dict)
    sink_lives: dict[str, int] = msgspec.field(default_factory=dict)
    """Registrations of each name so far, deleted ones included."""

    @property
    def has_table_within(self) -> bool:
        """Whether compacted files belong into the folder of the output."""
        return any(entry.table == "within" for entry in self.sinks.values())

    def to_json(self) -> bytes:
        """See `Document.to_json`. A stored reader has its name only as the key."""
        readers = {name: replace(reader, name="") for name, reader in self.readers.items()}
        return Document.to_json(
            replace(self, readers=readers, format_version=WITH_SINKS if self.sinks or self.sink_lives else 1)
        )

    @classmethod
    def from_json(cls, key: str, body: bytes | str) -> Self:
        """See `Document.from_json`."""
        found = super().from_json(key, body)
        return replace(found, readers={n: replace(reader, name=n) for n, reader in found.readers.items()})


_NO_READERS = Registry({}, {})


def _number(name: str, partition: str, number: SupportsIndex) -> int:
    try:
        found = -1 if isinstance(number, bool) else index(number)
    except TypeError:
        found = -1
    if not 0 <= found <= MOST_NUMBER:
        wanted = "must be a whole number from 0 to 2**63 - 1, the next number to read"
        raise UsageError(f"reader {name!r}, partition {partition}: {number!r:.80} {wanted}")
    return found


def _checkpoint_url(given: str | os.PathLike[str]) -> str:
    """The URL under which every host finds a checkpoint or container that a user or Spark names.

    Raises:
        UsageError: it is in a store that actorproc cannot read.
    """
    url = own_url(os.fspath(given))
    if url is None:
        raise UsageError(f"{given}: actorproc has no store there to read positions from; give them by hand (--at)")
    scheme, found, path = url.partition("://")
    if not found or "/" in scheme:
        path = url
    elif scheme != "file":
        return url
    return f"file://{Path(os.path.expanduser(path)).absolute()}"  # noqa: PTH111 (an unknown ~user stays as it is)


async def read_registry(store: Store, key: str) -> Registry:
    """The registry at `key`; an empty one if there is none.

    Raises:
        CorruptObject: it is corrupt.
    """
    return await SharedDocument(store, key, Registry).read() or _NO_READERS


async def register(
    store: Store, key: str, reader: Reader, at: Mapping[str, int] | None = None, *, rename: bool = False
) -> Registry:
    """Retain from now on all that `reader` has not read. A known reader is updated: given positions move, others stay.

    Args:
        key: of the registry: `ProcessorLayout.readers` of an output, `READERS` of a log.
        at: next number by partition, if the reader's position is known.
        rename: use the name under which the reader is known, or a free one if its own is taken.

    Returns:
        The registry. A reader without a position may begin at its `lowest` numbers.

    Raises:
        UsageError: the reader's next data was trimmed, or its name or checkpoint belongs to another reader.
    """

    def change(found: Registry | None) -> Registry:
        registry = found or _NO_READERS
        wanted = replace(reader, name=_free_name(registry, reader)) if rename else reader
        known = registry.readers.get(wanted.name)
        if known is not None:
            if not known.is_same(wanted):
                raise UsageError(
                    f"there is a reader {reader.name!r} already ({known}): give this one another name, or "
                    "remove that one first"
                )
            _refuse_if_anothers(wanted, known)
            wanted = replace(
                wanted,
                positions={**known.positions, **wanted.positions},
                query=wanted.query or known.query,
                stream=wanted.stream or known.stream,
            )
        if known != wanted:
            _refuse_if_behind(reader, reader.positions if at is None else at, registry.lowest)
        return replace(registry, readers={**registry.readers, wanted.name: wanted})

    return await SharedDocument(store, key, Registry).change(change) or _NO_READERS


async def remove(store: Store, key: str, name: str) -> Reader:
    """Retain nothing for this reader any more.

    Raises:
        UsageError: there is no reader of this name. Names the readers that exist.
    """
    removed: list[Reader] = []

    def change(found: Registry | None) -> Registry:
        registry = found or _NO_READERS
        if name not in registry.readers:
            names = ", ".join(sorted(registry.readers)) or "none"
            raise UsageError(f"there is no reader {name!r}; there are: {names}")
        removed.append(registry.readers[name])
        return replace(registry, readers={other: r for other, r in registry.readers.items() if other != name})

    await SharedDocument(store, key, Registry).change(change)
    return removed[-1]


async def decide(
    store: Store, key: str, seen: Registry, lowest: Mapping[str, int], expired: Collection[str] = ()
) -> bool:
    """Retain nothing below these numbers from now on; False if the registry has changed since it was `seen`.

    Args:
        expired: names of readers that are removed.
    """
    document = SharedDocument(store, key, Registry)
    if (await document.read() or _NO_READERS) != seen:
        return False
    try:
        readers = {name: reader for name, reader in seen.readers.items() if name not in expired}
        await document.swap(replace(seen, readers=readers, lowest={**seen.lowest, **lowest}))
    except Conflict:
        return False
    return True


def _free_name(registry: Registry, reader: Reader) -> str:
    """The name under which the reader is known, else a free one. An unused second name would retain everything."""
    for name, other in registry.readers.items():
        if reader.kind != "position" and other.is_same(reader):
            return name
    names = (reader.name if number == 1 else f"{reader.name}-{number}" for number in count(1))
    return next(name for name in names if name not in registry.readers)


def _refuse_if_anothers(reader: Reader, known: Reader) -> None:
    if reader.query and known.query and reader.query != known.query:
        raise UsageError(
            f"the checkpoint {known.url} belongs to {known.query}: {reader.query} would continue there, without the "
            "rows before. Give it a checkpoint of its own; or, if it is the same query under a new name, "
            f"`actorproc readers remove {known.name} ...` and start it again"
        )


def _refuse_if_behind(reader: Reader, positions: Mapping[str, int], lowest: Mapping[str, int]) -> None:
    behind = {p: number for p, number in positions.items() if number < lowest.get(p, 0)}
    if behind:
        named = ", ".join(f"partition {p}: {number}, trimmed below {lowest[p]}" for p, number in sorted(behind.items()))
        raise UsageError(
            f"reader {reader.name!r} cannot be registered: the data that it reads next was trimmed ({named}). "
            f"{_WAY_OUT[reader.kind]}"
        )


async def lowest_numbers(store: Store, key: str, boundaries: Boundaries) -> Mapping[str, int]:
    """The number by partition from which a new reader may read: decided trims count, not only finished ones."""
    decided = (await read_registry(store, key)).lowest
    done = {partition: boundary.lowest for partition, boundary in (await boundaries.read(store)).items()}
    return {partition: max(decided.get(partition, 0), done.get(partition, 0)) for partition in {*decided, *done}}
