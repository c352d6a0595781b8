"""Who reads an output or a log, and what is kept for them: one document, changed by compare-and-swap.

Readers and the numbers below which nothing is kept stand in the same object, so a reader that registers and a trim that
is decided cannot pass each other. Protocol: docs/protocol.md; as a model: tests/protocol/trim_model.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, count
from operator import index
from typing import Any, Literal, Self, SupportsIndex

from actorproc.errors import UsageError
from actorproc.retention.boundary import Boundaries
from actorproc.storage.document import MOST_NUMBER, check_types, document, to_document
from actorproc.storage.names import checked_name
from actorproc.storage.store import Conflict, Store, Stored
from actorproc.stores import SCHEMES
from actorproc.stores.directories import at_home

Kind = Literal["spark", "processor", "position"]

_WAY_OUT: Mapping[Kind, str] = {
    "spark": "Go on with a new checkpointLocation, which begins with what is there",
    "processor": "Start it anew under another name, which begins with what is there",
    "position": "Begin there or later",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "url": (str,),
    "processor": (str,),
    "stream": (str,),
    "positions": (dict,),
    "query": (str,),
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//?)")


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads on, and what tells how far it is. Made by `spark`, `of_processor` and `at`."""

    name: str
    kind: Kind
    url: str = ""
    """Of the Spark checkpoint, or of the processor's container."""
    processor: str = ""
    stream: str = ""
    """Identity of the stream that the processor reads; "": that of what it is registered with."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Number that is read next by partition, where it is given by hand."""
    query: str = ""
    """MODULE:FUNCTION whose checkpoint it is; "" where nobody has said."""

    @classmethod
    def spark(cls, name: str, checkpoint: str | os.PathLike[str], query: str = "") -> Self:
        """A Spark query with this `checkpointLocation`. Until its first micro-batch is done it holds everything."""
        return cls(
            checked_name("reader name", name),
            "spark",
            url=_place("checkpoint", checkpoint),
            query=_text("query", query),
        )

    @classmethod
    def of_processor(
        cls, container: str | os.PathLike[str], processor: str, stream: str = "", *, name: str | None = None
    ) -> Self:
        """A processor. A partition that it has not claimed yet is held as it is."""
        name = checked_name("reader name", name or processor)
        url, processor = _place("container", container), checked_name("processor name", processor)
        return cls(name, "processor", url=url, processor=processor, stream=_text("stream", stream))

    @classmethod
    def at(cls, name: str, positions: Mapping[str, SupportsIndex]) -> Self:
        """Whatever reads by itself; somebody moves its positions. A partition without one is held as it is.

        Raises:
            UsageError: a position is no whole number, or a negative one. In the list nobody could read it.
        """
        name = checked_name("reader name", name)
        if not isinstance(positions, Mapping):
            raise UsageError(f"reader {name!r}: {positions!r:.80}: numbers by partition, such as {{'0': 1200}}")
        return cls(name, "position", positions={str(p): _number(name, p, n) for p, n in positions.items()})

    def is_same(self, other: Reader) -> bool:
        """Whether both tell of the same position, wherever it is."""
        return (self.kind, self.url, self.processor) == (other.kind, other.url, other.processor)

    def __str__(self) -> str:
        match self.kind:
            case "spark":
                return f"Spark checkpoint {self.url}"
            case "processor":
                return f"processor {self.processor} at {self.url}"
            case "position":
                return "moved by hand"


@dataclass(frozen=True, slots=True)
class Registry:
    """The readers by name; and `lowest`: numbers, by partition, below which nothing is kept for anybody."""

    readers: Mapping[str, Reader] = field(default_factory=dict)
    lowest: Mapping[str, int] = field(default_factory=dict)
    tag: str | None = None
    """Of the object that said so; None: there was none."""

    def to_json(self, put_id: str) -> bytes:
        readers = {name: _without_name(reader) for name, reader in self.readers.items()}
        return to_document({"readers": readers, "lowest": dict(self.lowest), "put_id": put_id})

    @classmethod
    def of(cls, key: str, stored: Stored | None) -> Self:
        if stored is None:
            return cls()
        with document(key, stored.body, "list of readers") as fields:
            readers = {name: _reader(name, found) for name, found in fields["readers"].items()}
            return cls(readers, {str(p): int(n) for p, n in fields["lowest"].items()}, stored.tag)


def _reader(name: str, found: Mapping[str, Any]) -> Reader:
    """A reader as `_without_name` has left it. Raises ValueError or TypeError: that is none."""
    reader = Reader(name, **found)
    check_types({field: getattr(reader, field) for field in _TYPES}, _TYPES)
    check_types(reader.positions, dict.fromkeys(reader.positions, (int,)))
    if reader.kind not in _WAY_OUT:
        raise ValueError(f"kind = {reader.kind!r}: {', '.join(_WAY_OUT)}")
    return reader


def _number(name: str, partition: object, number: object) -> int:
    """What reader `name` reads next in a partition, of whatever type of integers it is."""
    try:
        found = -1 if isinstance(number, bool) else index(number)  # type: ignore[arg-type]
    except TypeError:
        found = -1
    if not 0 <= found <= MOST_NUMBER:
        wanted = "a whole number, 0 or more, and of 64 bits: what is read next"
        raise UsageError(f"reader {name!r}, partition {partition}: {number!r:.80}: {wanted}")
    return found


def _text(what: str, given: str) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{what} = {given!r:.80}: text")
    return given


def _place(what: str, given: str | os.PathLike[str]) -> str:
    """The URL, as Spark or a person writes it, as every host of ours finds it. `what` was given, for messages.

    Raises:
        UsageError: it is in no store that we can read.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{what} = {given!r}: its URL as text, or a folder")
    url = os.fspath(given)
    match = _SCHEME.match(url)
    scheme, slashes = match.groups() if match else ("file", "/")
    if scheme == "file":  # relative ones too: nobody else is here
        return f"file://{at_home(url.removeprefix('file:').removeprefix('//') if match else url).absolute()}"
    if scheme in ("s3a", "s3n") and slashes == "//":
        return f"s3://{url[len(scheme) + 3 :]}"
    if scheme not in SCHEMES or slashes == "/":  # as in hdfs:/checkpoints
        raise UsageError(f"{url}: positions can be read in a folder, or on S3, not there; give them by hand (--at)")
    return url


def _without_name(reader: Reader) -> dict[str, Any]:
    return {field: value for field in _FIELDS if (value := getattr(reader, field))}


_FIELDS = tuple(field.name for field in fields(Reader) if field.name != "name")


async def read_registry(store: Store, key: str) -> Registry:
    """The registry at `key`; an empty one if there is none.

    Raises:
        CorruptObject: it is not what was written there.
    """
    return Registry.of(key, await store.get(key))


async def register(
    store: Store, key: str, reader: Reader, at: Mapping[str, int] | None = None, *, rename: bool = False
) -> Registry:
    """From now on nothing is trimmed that `reader` has not read. Nothing happens if it is known; positions that are given
    by hand are moved, and those of other partitions stay.

    Args:
        key: of the registry: `ProcessorLayout.readers` of an output, `layout.READERS` of a log.
        at: where it stands, if that is known.
        rename: take the name under which it is known, or else another one if its own is another's.

    Returns:
        The registry. A reader that has no position yet may begin at its `lowest` numbers.

    Raises:
        UsageError: what it reads next was trimmed; another reader has its name; or its checkpoint is another query's.
    """
    registry = Registry()

    def change(stored: Stored | None) -> bytes | None:
        nonlocal registry
        registry = Registry.of(key, stored)
        wanted = replace(reader, name=_free_name(registry, reader)) if rename else reader
        there = registry.readers.get(wanted.name)
        if there is not None and not there.is_same(wanted):
            raise UsageError(
                f"there is a reader {reader.name!r} already ({there}): give this one another name, or remove that one first"
            )
        if there is not None:
            _refuse_if_anothers(wanted, there)
            wanted = replace(
                wanted,
                positions={**there.positions, **wanted.positions},
                query=wanted.query or there.query,
                stream=wanted.stream or there.stream,
            )
        if there == wanted:
            return None
        _refuse_if_behind(reader, reader.positions if at is None else at, registry.lowest)
        registry = replace(registry, readers={**registry.readers, wanted.name: wanted})
        return registry.to_json(store.clock.nonce())

    await store.change(key, change)
    return registry


async def remove(store: Store, key: str, name: str) -> Reader:
    """Keep nothing for this reader any more.

    Raises:
        UsageError: there is none of this name; names those there are.
    """
    before = Registry()

    def change(stored: Stored | None) -> bytes | None:
        nonlocal before
        before = Registry.of(key, stored)
        if name not in before.readers:
            there = ", ".join(sorted(before.readers)) or "none"
            raise UsageError(f"there is no reader {name!r}; there are: {there}")
        rest = {other: reader for other, reader in before.readers.items() if other != name}
        return replace(before, readers=rest).to_json(store.clock.nonce())

    await store.change(key, change)
    return before.readers[name]


async def decide(store: Store, key: str, seen: Registry, lowest: Mapping[str, int]) -> bool:
    """Keep nothing below these numbers from now on; false if the registry is not as it was `seen` any more."""
    body = replace(seen, lowest={**seen.lowest, **lowest}).to_json(store.clock.nonce())
    try:
        await store.write(key, body, seen.tag)
    except Conflict:
        return False
    return True


def _free_name(registry: Registry, reader: Reader) -> str:
    """Its name if it is known, whatever that is: under two, one would stay behind and hold everything."""
    known = (name for name, other in registry.readers.items() if reader.kind != "position" and other.is_same(reader))
    names = chain([reader.name], (f"{reader.name}-{number}" for number in count(2)))
    return next(known, None) or next(name for name in names if name not in registry.readers)


def _refuse_if_anothers(reader: Reader, there: Reader) -> None:
    if reader.query and there.query and reader.query != there.query:
        raise UsageError(
            f"the checkpoint {there.url} belongs to {there.query}: {reader.query} would go on where that is, without the rows "
            "before. Give it a checkpoint of its own; or, if it is the same query under a new name, "
            f"`actorproc readers remove {there.name} ...` and start it again"
        )


def _refuse_if_behind(reader: Reader, positions: Mapping[str, int], lowest: Mapping[str, int]) -> None:
    behind = {p: number for p, number in positions.items() if number < lowest.get(p, 0)}
    if behind:
        named = ", ".join(f"partition {p}: {number}, trimmed below {lowest[p]}" for p, number in sorted(behind.items()))
        raise UsageError(
            f"reader {reader.name!r} cannot be registered, what it reads next was trimmed ({named}). {_WAY_OUT[reader.kind]}"
        )


async def lowest_numbers(store: Store, key: str, boundaries: Boundaries) -> Mapping[str, int]:
    """The number from which somebody who begins now may read, by partition: what is decided counts, not only what is done."""
    decided = (await read_registry(store, key)).lowest
    done = {partition: boundary.lowest for partition, boundary in (await boundaries.read(store)).items()}
    return {partition: max(decided.get(partition, 0), done.get(partition, 0)) for partition in {*decided, *done}}
