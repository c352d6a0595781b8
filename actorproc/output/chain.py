"""The commit chain of a partition: numbered Parquet files, each of which is a commit of rows, position and dead letters.

Protocol and its invariants: docs/protocol.md; as a model that tries every interleaving: tests/protocol/commit_model.py.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field, replace
from typing import Self

import pyarrow as pa

from actorproc.errors import CorruptObject, Fenced
from actorproc.output.checkpoint import Checkpoint, Totals, read_checkpoint
from actorproc.records import Cursor
from actorproc.retention.boundary import read_boundary
from actorproc.storage.document import document, to_document
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout, number_before_id
from actorproc.storage.parquet import Footer, footer_of, read_footer, write_parquet
from actorproc.storage.store import Conflict, Store, Stored

_COMMIT = "actorproc.commit"
_LETTERS = "actorproc.dead_letters"
_LARGE = "actorproc.large_letters"  # the put-id under which they stand, if not in the footer

LETTERS_LIMIT = 4 * 2**20
"""Bytes of packed dead letters that a footer may hold. Many come as many commits, so beyond it is a giant; and readers of
Parquet refuse a footer of some 100 MB."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What the footer of an output file says: the step from `first` to `next`, decided for good once the file is there."""

    put_id: str
    host: str
    epoch: int
    first: Cursor
    next: Cursor
    totals: Totals
    """Of the partition, this commit included."""
    time: float
    """Seconds since 1970 by the host's clock, but never before the commit before it."""
    rows: int = 0
    letters: bytes = field(default=b"", repr=False)
    """Dead letters of this step as JSON lines. Committed here, published under the same number right after."""

    def metadata(self) -> tuple[dict[str, str], bytes | None]:
        """Entries of the footer; and the dead letters, packed, if they are too large for one and stand elsewhere."""
        fields = asdict(self) | {"first": list(self.first), "next": list(self.next)}
        letters = fields.pop("letters")
        fields["letters_size"] = len(letters)
        entries = {_COMMIT: to_document(fields).decode()}
        packed = pa.compress(letters, codec="zstd", asbytes=True) if letters else b""
        if len(packed) > LETTERS_LIMIT:
            entries[_LARGE] = self.put_id
            return entries, packed
        if packed:
            entries[_LETTERS] = base64.b64encode(packed).decode()
        return entries, None

    @classmethod
    def from_footer(cls, key: str, footer: Footer, elsewhere: bytes | None = None) -> Self:
        """The commit that a footer tells of. `elsewhere`: its dead letters, packed, if they are not in it."""
        commit, size = cls._parsed(key, footer)
        if not size:
            return commit
        with document(key, footer.metadata[_COMMIT], "output file of actorproc"):
            packed = elsewhere or base64.b64decode(footer.metadata[_LETTERS])
            return replace(commit, letters=pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True))

    @classmethod
    def without_letters(cls, key: str, footer: Footer) -> Self:
        """The same without its dead letters, wherever they are."""
        return cls._parsed(key, footer)[0]

    @classmethod
    def _parsed(cls, key: str, footer: Footer) -> tuple[Self, int]:
        """The commit without its dead letters, and their size in bytes."""
        with document(key, footer.metadata.get(_COMMIT, ""), "output file of actorproc") as fields:
            size = int(fields.pop("letters_size"))
            cursors = {"first": Cursor(*fields["first"]), "next": Cursor(*fields["next"])}
            return cls(**fields | cursors | {"totals": Totals(**fields["totals"])}), size


def encode_commit(table: pa.Table, commit: Commit) -> tuple[bytes, bytes | None]:
    """The output file: `table`'s rows and the commit in its footer; and what `OutputChain.create` is to put beside it.

    CPU-heavy: run it off the loop.
    """
    metadata, letters = commit.metadata()
    return write_parquet(table, metadata), letters


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Where a partition ends: `number` is free, and `newest` the commit before it, if the checkpoint has not passed it."""

    number: int
    checkpoint: Checkpoint
    newest: Commit | None

    @property
    def cursor(self) -> Cursor:
        """How far is committed. At most once, the checkpoint goes ahead of a commit that landed late."""
        newest, known = self.newest, self.checkpoint.cursor
        return newest.next if newest and newest.next.sequence >= known.sequence else known

    @property
    def ahead(self) -> bool:
        """Whether the cursor tells what will be committed, not what is: see `Checkpoint.ahead`."""
        newest, known = self.newest, self.checkpoint
        return known.ahead and not (newest and newest.next.sequence >= known.cursor.sequence)

    @property
    def totals(self) -> Totals:
        return (self.newest or self.checkpoint).totals


class OutputChain:
    """Reads, extends and publishes the chain of one partition."""

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition

    async def read(self, number: int, *, letters: bool = False) -> Commit | None:
        """Commit `number`, or None if it has not been made (yet: only creating it settles that).

        Args:
            letters: with its dead letters, of which a giant is fetched from elsewhere.

        Raises:
            CorruptObject: the file is not what was written there.
        """
        key = self._layout.output_file(self._partition, number)
        footer = await read_footer(self._store, key)
        if footer is None:
            return None
        if not letters:
            return Commit.without_letters(key, footer)
        elsewhere = None
        if (put_id := footer.metadata.get(_LARGE)) is not None:
            place = self._layout.large_letters(self._partition, number, put_id)
            stored = await self._store.get(place)
            if stored is None:
                raise CorruptObject(place, f"is not there, and {key} has its dead letters in it")
            elsewhere = stored.body
        return Commit.from_footer(key, footer, elsewhere)

    def check_follows(self, number: int, commit: Commit, previous: Cursor, reached: Cursor | None) -> None:
        """See that commit `number` begins no earlier than where the one before it ended, and no later than `reached`: what
        that and the checkpoint lead to. None: the checkpoint was lost, and with it how far it was moved between commits.

        Raises:
            CorruptObject: it does not: commits are missing, or records are in two of them.
        """
        first = commit.first.sequence
        if first < previous.sequence or (reached is not None and first > reached.sequence):
            upto = previous if reached is None else reached
            raise CorruptObject(
                self._layout.output_file(self._partition, number),
                f"it goes on after record {first}, and what was committed before it leads to record {upto.sequence}: commits or "
                "the checkpoint were deleted, or older ones restored. Restore them, or start anew under another processor name",
            )

    def check_not_below(self, boundary: int, number: int) -> None:
        """See that a checkpoint with `number`, read after the boundary, has passed it: trims stay below the checkpoint.

        Raises:
            CorruptObject: it has not: it was deleted, or an older one restored.
        """
        if number < boundary:
            raise CorruptObject(
                self._layout.checkpoint(self._partition),
                f"goes on at commit {number}, and commits below {boundary} were trimmed or compacted: the checkpoint was "
                "deleted, or an older one restored. Restore the newest, or start anew under another processor name",
            )

    async def begun(self) -> bool:
        """Whether there is any commit."""
        return await self._first_from(0) is not None

    async def gap(self, number: int) -> CorruptObject | None:
        """What is wrong, if there are files beyond `number` although there is none there."""
        later = await self._first_from(number)
        if later is None or await self.read(number) is not None:  # it may have been made meanwhile
            return None
        return CorruptObject(
            self._layout.output_file(self._partition, number),
            f"is not there, and {later} is, nor has the checkpoint passed it: it was deleted, or an older checkpoint restored. Restore "
            "what is missing, or start anew under another processor name",
        )

    async def _first_from(self, number: int) -> str | None:
        files = await numbered_files(self._store, self._layout.output_dir(self._partition), number, 1)
        return files[0].entry.key if files else None

    async def create(self, number: int, put_id: str, body: bytes, letters: bytes | None) -> None:
        """Decide commit `number`. Letters that are too large for its footer are put first, under a key that only this commit
        names; if it is not made, the trim that deletes the number deletes them.

        Raises:
            Fenced: somebody else decided it; nothing of ours is in the chain.
            StoreUnavailable: not settled; it may still land.
            CorruptObject: what is there is no commit.
        """
        key = self._layout.output_file(self._partition, number)
        if letters is not None:
            await self._store.put(self._layout.large_letters(self._partition, number, put_id), letters)
        try:
            await self._store.create(key, body)
        except Conflict as conflict:
            raise Fenced(f"{key}: {_committer(key, conflict.stored)} has committed it") from None

    async def publish(self, number: int, commit: Commit) -> None:
        """Copy the dead letters of commit `number`, read with them, to their own place. Doing it twice does nothing.

        Raises:
            Fenced: the commit lies below the boundary: it was trimmed or compacted before this worker woke up; what it
                holds now may be void.
        """
        if not commit.letters:
            return
        if number < await self.boundary():
            raise Fenced(f"commit {number} of partition {self._partition} was trimmed or compacted meanwhile")
        try:
            await self._store.create(self._layout.dead_letter_file(self._partition, number), commit.letters)
        except Conflict:
            return  # published before, and purged since

    async def boundary(self) -> int:
        """The lowest number that still counts in `output/`; 0 if nothing was ever trimmed or compacted."""
        return (await read_boundary(self._store, self._layout.boundary(self._partition))).originals

    async def tip(self) -> ChainEnd | None:
        """Where the partition ends: the checkpoint, and the walk from there. None: it was never claimed.

        Raises:
            CorruptObject: the checkpoint or a footer is not what was written there.
        """
        checkpoint = await read_checkpoint(self._store, self._layout, self._partition)
        if checkpoint is None:
            return None
        number, newest = checkpoint.number, None
        while (commit := await self.read(number)) is not None:
            number, newest = number + 1, commit
        return ChainEnd(number, checkpoint, newest)


def _committer(key: str, stored: Stored | None) -> str:
    if stored is None:
        return "somebody (it was trimmed or compacted since)"
    found = Commit.without_letters(key, footer_of(key, stored.body))
    return f"{found.host} with epoch {found.epoch}"


async def read_cursor(store: Store, layout: ProcessorLayout, partition: str) -> Cursor | None:
    """How far the partition is committed; see `OutputChain.tip`."""
    tip = await OutputChain(store, layout, partition).tip()
    return tip.cursor if tip else None


async def large_letters(store: Store, layout: ProcessorLayout, partition: str) -> list[tuple[int, str]]:
    """Dead letters that stand beside the output, being too large for a footer: number and key. The commit of this number need
    not be the one for which they were put."""
    folder = layout.large_letters_dir(partition)
    keys = [entry.key for entry in (await store.list(folder)).entries]
    numbers = ((number_before_id(folder, key, ".zst"), key) for key in keys)
    return [(number, key) for number, key in numbers if number is not None]
