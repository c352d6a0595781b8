"""Replays dead letters: appends them to the log they came from, each once, however often it is killed and run again.

For each dead-letter file an intent is stored before anything is appended. It fixes the put-id and with it the bytes of
the log file, and names the base that is about to be tried. A base is left only after another's file was found there,
and the intent moves on by compare-and-swap first. So at any time only that one base can hold the append: whoever goes
on, after a crash or beside another replay, asks there whether it has landed, and sends the same file again if not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.document import document, to_document
from actorproc.errors import CorruptObject, UsageError, located
from actorproc.layout import ProcessorLayout, number_of, partition_of
from actorproc.log.files import LogMeta, Notes, encode_file, end_of, open_log
from actorproc.log.heads import HeadWriter
from actorproc.log.once import ending, hinting, land
from actorproc.output.dead_letters import decoded, letter_files, no_letters, read_letters
from actorproc.output.origin import check_source
from actorproc.records import Batch
from actorproc.store import Conflict, Store, Stored

HEADER = "actorproc.dead_letter."
"""Headers that a replayed record has on top of its own start so: processor, partition, sequence, error, attempts, time."""

_COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class Intent:
    """How far the replay of one dead-letter file is. All but `base`, `done` and `write_id` stays as it was created."""

    log: str
    """Which log: the put-id of its `log.json`."""
    put_id: str
    """Of the log file that is appended."""
    covers: int
    running: int
    """As in `actorproc.log.files.Notes`: fixed, so that the file is the same whenever it is made."""
    base: int
    """Where it is tried, or stands when `done`. Every lower base is another's for good."""
    done: bool
    write_id: str
    """Makes each version of this object unique."""

    def to_json(self) -> bytes:
        return to_document(asdict(self))

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "state of a replay") as fields:
            return cls(**fields)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead-letter file that is in the log. `base`: sequence of the first of its `letters` there."""

    partition: str
    number: int
    letters: int
    base: int
    before: bool
    """An earlier replay had done it."""


class Replays:
    """Tells which dead-letter files of a processor were replayed."""

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

    async def done(self, key: str) -> bool:
        """Whether the letters of the dead-letter file `key` are all in the log again."""
        intent = self._layout.replay(partition_of(key), number_of(key))
        stored = await self._store.get(intent) if intent in self._begun else None
        return stored is not None and Intent.from_json(intent, stored.body).done


class Replay:
    """Replays the dead letters of one processor into one log. Both stores are open.

    Files of the log must not have been deleted at or after the base of an unfinished intent, as for every append.
    """

    def __init__(self, store: Store, processor: str, log: Store, heads: HeadWriter, meta: LogMeta) -> None:
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

    async def file(self, key: str) -> Replayed | None:
        """Replay one dead-letter file; None if it was purged.

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
        intent_key = self._layout.replay(partition, number)
        stored = await self._store.get(intent_key) or await self._plan(intent_key, partition)
        intent = Intent.from_json(intent_key, stored.body)
        if intent.done:
            return Replayed(partition, number, len(letters), intent.base, before=True)
        if intent.log != self._identity:
            raise UsageError(
                f"{intent_key}: a replay of these letters into another log is unfinished; finish it with that --source, "
                f"or delete this object if that log is gone (here: {self._log.url})"
            )
        body = await self._store.clock.offload(self._encode, key, letters, intent)
        while True:
            intent, tag = Intent.from_json(intent_key, stored.body), stored.tag
            if intent.done:
                return Replayed(partition, number, len(letters), intent.base, before=True)
            following = await self._append(partition, intent, body)
            if following is None:
                change = replace(intent, done=True, write_id=self._nonce())
            else:
                change = replace(intent, base=following, write_id=self._nonce())
            stored = await self._swap(intent_key, change, tag)
            if following is None and stored.body == change.to_json():  # else another replay was first, and counts it
                return Replayed(partition, number, len(letters), intent.base, before=False)

    async def _plan(self, key: str, partition: str) -> Stored:
        """Create the intent at the end of the partition; or find another's."""
        with located(self._log.url):
            base, running = await ending(self._log, partition, self._heads.newest.get(partition, 0))
        intent = Intent(
            self._identity, self._nonce(), covers=base, running=running, base=base, done=False, write_id=self._nonce()
        )
        body = intent.to_json()
        try:
            created = await self._store.create(key, body)
        except Conflict as conflict:
            return _still_there(key, conflict)
        return Stored(body, created.tag, len(body))

    async def _append(self, partition: str, intent: Intent, body: bytes) -> int | None:
        """Put the file at the intent's base. None: it is there; else the base to try next, this one being another's."""
        doubt = (
            "Look for its letters in the output; then purge them, or delete the replay's object below "
            f"{self._layout.replays} to append them again"
        )
        with located(self._log.url):
            if await land(self._log, self._heads, partition, intent.base, intent.put_id, body, doubt=doubt):
                return None
            return await end_of(self._log, partition, intent.base)

    async def _swap(self, key: str, intent: Intent, tag: str) -> Stored:
        """Store the intent; or find what another replay has made of it."""
        body = intent.to_json()
        try:
            return Stored(body, (await self._store.swap(key, body, tag)).tag, len(body))
        except Conflict as conflict:
            return _still_there(key, conflict)

    def _encode(self, key: str, letters: list[dict[str, Any]], intent: Intent) -> bytes:
        try:
            keys, values, headers, timestamps = zip(*map(self._record, letters), strict=True)
            batch = Batch.of("", values, range(len(letters)), keys=keys, headers=headers, timestamps=timestamps)
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
            raise no_letters(key, error) from None
        table = pa.Table.from_batches([batch.data])
        newest = pc.max(table.column("timestamp")).cast(pa.int64()).as_py()
        producer = f"replay of {self._processor}"
        notes = Notes(intent.put_id, producer, newest, max(newest, intent.running), intent.covers)
        return encode_file(table, notes, _COMPRESSION)

    def _record(
        self, letter: dict[str, Any]
    ) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], datetime]:
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
            + [(HEADER + name, str(value).encode()) for name, value in history.items()],
            datetime.fromisoformat(letter["timestamp"] or letter["time"]),
        )

    def _nonce(self) -> str:
        return self._store.clock.nonce()


def _still_there(key: str, conflict: Conflict) -> Stored:
    if conflict.stored is None:
        raise CorruptObject(key, "was deleted while a replay is under way; do not, or its letters may repeat")
    return conflict.stored
