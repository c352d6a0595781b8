"""Replays dead letters: appends them to the log they came from, each once, however often it is killed and run again.

For each dead-letter file an intent is stored before anything is appended. It names the letters that go now, fixes the put-id
and with it the bytes of the log file, and names the base that is about to be tried. A base is left only after another's
file was found there, and the intent moves on by compare-and-swap first. So at any time only that one base can hold the
append: whoever goes on, after a crash or beside another replay, asks there whether it has landed, and sends the same file
again if not. Other letters of the file may go later, once these have landed; all that went are in the intent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import RESTORE, CorruptObject, UsageError, located
from actorproc.log.append_once import ending, hinting, land
from actorproc.log.hints import HintWriter
from actorproc.log.metadata import LogMeta, open_log
from actorproc.log.offsets import end_of
from actorproc.log.segment import SegmentFooter, encode_file
from actorproc.output.dead_letters import HISTORY, decoded, letter_files, no_letters, read_letters
from actorproc.output.source_identity import check_source
from actorproc.records import Batch
from actorproc.storage.document import document, to_document
from actorproc.storage.names import ProcessorLayout, number_of, partition_of
from actorproc.storage.store import Conflict, Store, Stored

_COMPRESSION = "zstd"

Letter = Mapping[str, Any]
"""As `dead-letters list --json` shows it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Letters of one dead-letter file that are appended together. All but `base` and `done` stays as it was created."""

    log: str
    """Which log: the put-id of its `log.json`."""
    sequences: Sequence[int] | None
    """Which letters; None: all that no earlier part has."""
    put_id: str
    """Of the log file that is appended."""
    covers: int
    running: int
    """As in `actorproc.log.segment.SegmentFooter`: fixed, so that the file is the same whenever it is made."""
    base: int
    """Where it is tried, or stands when `done`. Every lower base is another's for good."""
    done: bool


@dataclass(frozen=True, slots=True)
class Intent:
    """How far the replay of one dead-letter file is. `write_id` makes each version of this object unique."""

    parts: Sequence[Part]
    """Only the last may not be done."""
    write_id: str

    def to_json(self) -> bytes:
        return to_document(asdict(self))

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "state of a replay") as fields:
            parts = [Part(**part) for part in fields.pop("parts")]
            if not all(part.done for part in parts[:-1]):
                raise ValueError("a part that is not the last is not done")
            for part in parts:
                numbers = [part.base, part.covers, part.running, *(part.sequences or ())]
                if part.sequences == [] or not all(type(number) is int for number in numbers):
                    raise ValueError("a part has no sequences, or what is to be a number is none")
            return cls(parts, **fields)

    @property
    def pending(self) -> Part | None:
        """What must land before anything else goes."""
        return self.parts[-1] if self.parts and not self.parts[-1].done else None

    def done(self, letters: Sequence[Letter]) -> set[int]:
        """Sequences of those of the file's `letters` that are in the log again."""
        return _covered([part for part in self.parts if part.done], letters)

    def of_last(self, letters: Sequence[Letter]) -> Sequence[Letter]:
        """Those that go with the last part, in order."""
        last = _covered(self.parts, letters) - _covered(self.parts[:-1], letters)
        return [letter for letter in letters if letter["sequence"] in last]


def _covered(parts: Sequence[Part], letters: Sequence[Letter]) -> set[int]:
    there = {letter["sequence"] for letter in letters}
    if any(part.sequences is None for part in parts):
        return there
    return there & {sequence for part in parts for sequence in part.sequences or ()}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a dead-letter file: letters that this replay appended, and those it was asked for that were in the log
    before."""

    appended: int
    before: int


class Replays:
    """Tells which dead letters of a processor were replayed."""

    def __init__(self, store: Store, layout: ProcessorLayout, begun: Collection[str]) -> None:
        self._store = store
        self._layout = layout
        self._begun = begun

    @classmethod
    async def listed(cls, store: Store, layout: ProcessorLayout) -> Self:
        """Those that have begun up to now."""
        return cls(store, layout, {entry.key for entry in (await store.list(layout.replays)).entries})

    def __bool__(self) -> bool:
        """Whether anything was ever replayed."""
        return bool(self._begun)

    async def done(self, key: str, letters: Sequence[Letter]) -> set[int]:
        """Sequences of those of the `letters` in dead-letter file `key` that are in the log again."""
        intent = self._layout.replay(partition_of(key), number_of(key))
        stored = await self._store.get(intent) if intent in self._begun else None
        return set() if stored is None else Intent.from_json(intent, stored.body).done(letters)


class Replay:
    """Replays the dead letters of one processor into one log. Both stores are open.

    Files of the log must not have been deleted at or after the base of an unfinished intent, as for every append.
    """

    def __init__(self, store: Store, processor: str, log: Store, heads: HintWriter, meta: LogMeta) -> None:
        self._store = store
        self._processor = processor
        self._layout = ProcessorLayout(processor)
        self._log = log
        self._heads = heads
        self._partitions, self._identity = meta

    @classmethod
    @asynccontextmanager
    async def opened(cls, store: Store, processor: str, log: Store) -> AsyncIterator[Self]:
        """While inside, readers of the log are told of what is appended.

        Raises:
            UsageError: there is no log, or it is not the one that was processed.
        """
        meta = await open_log(log)
        with located(store.url):
            await check_source(store, ProcessorLayout(processor), meta.identity, log.url)
            async with hinting(log) as heads:
                yield cls(store, processor, log, heads, meta)

    async def files(self, partition: str | None = None) -> list[str]:
        """Keys of the dead-letter files that hold letters, by partition and number."""
        return await letter_files(self._store, self._layout, partition)

    async def file(self, key: str, wanted: Callable[[Letter], bool] = lambda letter: True) -> Replayed | None:
        """Replay the wanted letters of one dead-letter file, after those with which an earlier replay was cut off; None if it
        was purged.

        Raises:
            UsageError: the log has no such partition, or an unfinished replay of the file goes to another log.
            CorruptObject: an object in the way is not what was written there.
            StoreUnavailable: not settled; run it again to go on.
        """
        partition, number = partition_of(key), number_of(key)
        if not (partition.isdecimal() and int(partition) < self._partitions):
            raise UsageError(
                f"{key}: the log at {self._log.url} has partitions 0 to {self._partitions - 1}, none named {partition!r}; "
                "is it the source of this processor?"
            )
        letters = await read_letters(self._store, key)
        if not letters:
            return None
        asked = {letter["sequence"] for letter in letters if wanted(letter)}
        ours: set[int] = set()
        intent_key = self._layout.replay(partition, number)
        stored = await self._store.get(intent_key)
        while True:
            intent, tag = (Intent.from_json(intent_key, stored.body), stored.tag) if stored else (Intent([], ""), None)
            part = intent.pending
            if part is None:
                done = intent.done(letters)
                if asked <= done:
                    return Replayed(len(ours), len(asked - ours))
                part = await self._plan(partition, None if len(asked | done) == len(letters) else sorted(asked - done))
                stored, _ = await self._store_intent(intent_key, [*intent.parts, part], tag)
                continue
            if part.log != self._identity:
                raise UsageError(
                    f"{intent_key}: a replay of these letters into another log is unfinished; finish it with that --source, "
                    f"or delete this object if that log is gone (here: {self._log.url})"
                )
            going = intent.of_last(letters)
            if not going:
                raise CorruptObject(
                    intent_key, f"names letters that {key} has not: look who changed one of them, and {RESTORE}"
                )
            body = await self._store.clock.run_in_thread(self._encode, key, going, part)
            try:
                following = await self._append(partition, part, body)
            except CorruptObject:
                now = await self._store.get(intent_key)
                if now is None or now.tag == tag:
                    raise
                stored = now  # another replay has gone on while this one slept, and knows what became of it
                continue
            part = replace(part, done=True) if following is None else replace(part, base=following)
            stored, kept = await self._store_intent(intent_key, [*intent.parts[:-1], part], tag)
            if kept and part.done:  # else another replay was first, and counts them
                ours |= {letter["sequence"] for letter in going}

    async def _plan(self, partition: str, sequences: Sequence[int] | None) -> Part:
        """Letters that go to the end of the partition."""
        with located(self._log.url):
            base, running = await ending(self._log, partition, self._heads.newest.get(partition, 0))
        return Part(self._identity, sequences, self._nonce(), covers=base, running=running, base=base, done=False)

    async def _append(self, partition: str, part: Part, body: bytes) -> int | None:
        """Put the file at the part's base. None: it is there; else the base to try next, this one being another's."""
        doubt = (
            "Look for its letters in the output; then purge them, or delete the replay's object below "
            f"{self._layout.replays} to append them again"
        )
        with located(self._log.url):
            if await land(self._log, self._heads, partition, part.base, part.put_id, body, doubt=doubt):
                return None
            return await end_of(self._log, partition, part.base)

    async def _store_intent(self, key: str, parts: Sequence[Part], tag: str | None) -> tuple[Stored, bool]:
        """Store the intent, in place of the one with `tag`. Whether that was done; if not, what another replay has made of it."""
        body = Intent(parts, self._nonce()).to_json()
        try:
            written = await self._store.write(key, body, tag)
        except Conflict as conflict:
            if conflict.stored is None:
                raise CorruptObject(
                    key, "was deleted while a replay is under way; do not, or its letters may repeat"
                ) from None
            return conflict.stored, False
        return Stored(body, written, len(body)), True

    def _encode(self, key: str, letters: Sequence[Letter], part: Part) -> bytes:
        try:
            keys, values, headers, timestamps = zip(*map(self._record, letters), strict=True)
            batch = Batch.of("", values, range(len(letters)), keys=keys, headers=headers, timestamps=timestamps)
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
            raise no_letters(key, error) from None
        table = pa.Table.from_batches([batch.data])
        newest = pc.max(table.column("timestamp")).cast(pa.int64()).as_py()
        producer = f"replay of {self._processor}"
        notes = SegmentFooter(part.put_id, producer, newest, max(newest, part.running), part.covers)
        return encode_file(table, notes, _COMPRESSION)

    def _record(self, letter: Letter) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], datetime]:
        """Key, value, headers and timestamp of the record as it is appended."""
        history = {
            "processor": self._processor,
            "partition": letter["partition"],
            "sequence": letter["sequence"],
            "error": letter["error"]["type"],
            "attempts": letter["attempts"],
            "time": letter["time"],
        }
        return (
            decoded(letter["key"], letter.get("key_encoding")),
            decoded(letter["value"], letter.get("encoding")),
            [(header["key"], decoded(header["value"], header.get("encoding"))) for header in letter["headers"]]
            + [(HISTORY + name, str(value).encode()) for name, value in history.items()],
            datetime.fromisoformat(letter["timestamp"] or letter["time"]),
        )

    def _nonce(self) -> str:
        return self._store.clock.nonce()
