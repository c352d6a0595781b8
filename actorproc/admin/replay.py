"""Replays dead letters: appends them to the stream that they came from, or to a log of their own.

A replay of a dead-letter file is a transaction of the built-in log, or of Kafka, so each letter is appended once. (A
stream without transactions gets small batches, of which the last may be repeated after a crash.) Its document, below
`replays/`, first records which letters are replayed now. Then they are committed as a batch of the transaction, and the
document marks them as done. A replay that finds an unfinished part, after a crash or beside another replay, commits the
same batch again, which appends nothing twice. Without transactions, one replay at a time may append (`ReplayClaim`).

A letter that the stream refuses for good is left out, and stays as it was. If a transaction is refused for such a
letter, its batch becomes void, and the other letters are a new part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple, Self

import pyarrow as pa
from msgspec.structs import replace

from actorproc.admin.replay_claim import ReplayClaim
from actorproc.admin.replay_state import Letter, ReplayPart, ReplayState, deleted_meanwhile
from actorproc.admin.replay_target import missing_partition
from actorproc.errors import RESTORE, CorruptObject, UsageError, located
from actorproc.output.letter import HISTORY, corrupt_letters, decoded, read_letters
from actorproc.output.source_identity import check_source
from actorproc.records import Batch
from actorproc.sources.replay_target import Outcome, ReplayTarget
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout, number_of, partition_of
from actorproc.storage.store import Conflict, Store


class _Committed(NamedTuple):
    """The outcome of each letter of a part, by sequence."""

    appended: set[int]
    refused: dict[int, str]
    letters: int

    @classmethod
    def of(cls, outcome: Outcome, letters: Sequence[Letter]) -> Self:
        owners = [letter["sequence"] for letter in letters for _ in (*letter.get("earlier", ()), letter)]
        refused = {owners[index]: reason for index, reason in outcome.refused.items()}
        if outcome.reason and len(letters) == 1:
            refused[owners[0]] = outcome.reason
        appended = set() if outcome.is_void else set(owners) - refused.keys()
        return cls(appended, refused, len(letters))

    def next_size(self, most: int | None) -> int | None:
        """Letters of the next part: fewer, to find those that are refused, or more again."""
        if not self.appended and not self.refused:
            return max(1, self.letters // 2)
        return 2 * self.letters if most is None else min(most, 2 * self.letters)


class Replay:
    """Replays the dead letters of one processor into one stream. Store and target are open."""

    def __init__(self, store: Store, processor: str, target: ReplayTarget) -> None:
        self.target = target
        self.refused: dict[tuple[str, int], str] = {}
        """Why letters were not appended, by partition and sequence."""
        self._store = store
        self._processor = processor
        self._layout = ProcessorLayout(processor)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, store: Store, processor: str, target: AbstractAsyncContextManager[ReplayTarget], *, is_source: bool = True
    ) -> AsyncIterator[Self]:
        """Enter the target. Raises UsageError if it is not the source of the processor, but should be."""
        async with target as entered:
            if is_source:
                with located(store.url):
                    identity = None if entered.kind else entered.identity
                    await check_source(store, ProcessorLayout(processor), identity, entered.url, entered.kind)
            yield cls(store, processor, entered)

    async def file(
        self, key: str, wanted: Callable[[Letter], bool] = lambda letter: True, *, value: bytes | None = None
    ) -> tuple[int, int] | None:
        """Replay the wanted letters of one dead-letter file; None if the file was purged.

        If an earlier replay of the file was killed, its letters are replayed first. Letters that the target refuses are
        added to `refused`.

        Args:
            value: the corrected value of the one letter that is wanted.

        Returns:
            Counts of letters: appended by this replay, and asked for but appended by an earlier one.

        Raises:
            UsageError: the target has no such partition, or an unfinished replay of the file goes to another stream.
            CorruptObject: an object that is needed is corrupt or gone.
            StoreUnavailable: the outcome is unknown; run it again to go on.
        """
        if not self.target.has_partition(partition_of(key)):
            raise missing_partition(key, partition_of(key), self.target)
        letters = await read_letters(self._store, key)
        if not letters:
            return None
        asked = {letter["sequence"] for letter in letters if wanted(letter)}
        appended: set[int] = set()
        refused: dict[int, str] = {}
        sent: dict[int, set[int]] = {}  # sequences by batch, whose part may not be settled yet
        at_once = self.target.letters_at_once
        document = SharedDocument(self._store, self._layout.replay(partition_of(key), number_of(key)), ReplayState)
        claim = ReplayClaim(document, self._store.clock, needed=not self.target.has_transactions)
        await document.read()
        while True:
            state = document.current or ReplayState()
            try:
                if state.pending is None:
                    done = state.done(letters)
                    if not (left := asked - done - refused.keys()):
                        self.refused |= {(partition_of(key), sequence): refused[sequence] for sequence in asked - done}
                        return len(appended), len((asked & done) - appended)
                    chosen = sorted(left)[:at_once]
                    sequences = None if len(done) + len(chosen) == len(letters) else tuple(chosen)
                    part = ReplayPart(self.target.identity, sequences, done=False, claim=claim.name, value=value)
                    transaction = state.transaction or f"replay-{self._store.clock.nonce()}"
                    await document.swap(replace(state, parts=(*state.parts, part), transaction=transaction))
                elif state.batch in sent:
                    await document.swap(state.settled(sent[state.batch], letters))
                    appended |= sent[state.batch]  # the replay that marks the part as done counts its letters
                else:
                    self._check_pending(state.pending, state, document.key)
                    if await claim.taken(state):
                        async with claim.kept():
                            committed = await self._commit(key, state, document.key, letters)
                        refused |= committed.refused
                        sent[state.batch] = committed.appended
                        at_once = committed.next_size(self.target.letters_at_once)
            except Conflict:
                if await document.read() is None:
                    raise deleted_meanwhile(document.key) from None

    def _check_pending(self, pending: ReplayPart, state: ReplayState, state_key: str) -> None:
        if pending.log != self.target.identity:
            raise UsageError(
                f"{state_key}: a replay of these letters into another stream is unfinished: into the one with the "
                f"identity {pending.log!r}, not {self.target.identity!r} of {self.target.url}. (`actorproc logs "
                "describe URL --json` shows the identity of a log.) Finish it with that --source or --into, or delete "
                "this object if that stream is gone"
            )
        if not state.transaction:
            raise UsageError(
                f"{state_key}: an older actorproc began a replay of these letters and did not finish it. Run this "
                "command once more with that version, and then with this one"
            )

    async def _commit(self, key: str, state: ReplayState, state_key: str, letters: Sequence[Letter]) -> _Committed:
        """Append the letters of the pending part, once."""
        replayed = state.of_last_part(letters)
        if not replayed:
            raise CorruptObject(
                state_key, f"names letters that {key} has not: look who changed one of them, and {RESTORE}"
            )
        data = await self._store.clock.run_in_thread(self._records, key, replayed, state.parts[-1].value)
        outcome = await self.target.append(state.transaction, state.batch, partition_of(key), data)
        return _Committed.of(outcome, replayed)

    def _records(self, key: str, letters: Sequence[Letter], value: bytes | None) -> pa.RecordBatch:
        """The records of letters, as they are appended."""
        try:
            keys, values, headers, timestamps = zip(*self._each(letters, value), strict=True)
            return Batch.of("", values, range(len(values)), keys=keys, headers=headers, timestamps=timestamps).data
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
            raise corrupt_letters(key, error) from None

    def _each(self, letters: Sequence[Letter], value: bytes | None) -> Iterator[tuple[Any, ...]]:
        """The record of each letter, after the earlier ones that were given up with it."""
        for letter in letters:
            for fields in letter.get("earlier", ()):
                yield self._record({**letter, "key_encoding": None, "encoding": None, **fields})
            yield self._record(letter, value)

    def _record(
        self, letter: Letter, value: bytes | None = None
    ) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], datetime]:
        """Key, value, headers and timestamp. `value`: the corrected one."""
        history = {
            "processor": self._processor,
            "partition": letter["partition"],
            "sequence": letter["sequence"],
            "error": letter["error"]["type"],
            "attempts": letter["attempts"],
            "time": letter["time"],
            **({} if value is None else {"edited": "yes"}),
        }
        return (
            decoded(letter["key"], letter.get("key_encoding")),
            decoded(letter["value"], letter.get("encoding")) if value is None else value,
            [(header["key"], decoded(header["value"], header.get("encoding"))) for header in letter["headers"]]
            + [(HISTORY + name, str(value).encode()) for name, value in history.items()],
            datetime.fromisoformat(letter["timestamp"] or letter["time"]),
        )
