"""The commit chain of a partition: numbered Parquet files, each of which is a commit of rows, position and dead letters.

Protocol and its invariants: docs/protocol.md; as a model that tries every interleaving: tests/protocol/commit_model.py.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from typing import Self

import pyarrow as pa

from actorproc.document import document, to_document
from actorproc.errors import CorruptObject, Fenced
from actorproc.layout import ProcessorLayout
from actorproc.output.checkpoints import Totals, read_checkpoint
from actorproc.parquet import Footer, read_footer, write_parquet
from actorproc.records import Cursor
from actorproc.store import Conflict, Store

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
    """Seconds since 1970 by the host's clock: for people."""
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
    def from_footer(
        cls, key: str, footer: Footer, elsewhere: bytes | None = None, *, with_letters: bool = True
    ) -> Self:
        """The commit that a footer tells of. `elsewhere`: its dead letters, packed, if they are not in it."""
        with document(key, footer.metadata.get(_COMMIT, ""), "output file of actorproc") as fields:
            size = fields.pop("letters_size")
            letters = b""
            if size and with_letters:
                packed = elsewhere or base64.b64decode(footer.metadata[_LETTERS])
                letters = pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True)
            return cls(
                **fields
                | {
                    "first": Cursor(*fields["first"]),
                    "next": Cursor(*fields["next"]),
                    "totals": Totals(**fields["totals"]),
                    "letters": letters,
                }
            )


def encode_commit(table: pa.Table, commit: Commit) -> tuple[bytes, bytes | None]:
    """The output file: `table`'s rows and the commit in its footer; and what `OutputChain.create` is to put beside it.

    CPU-heavy: run it off the loop.
    """
    metadata, letters = commit.metadata()
    return write_parquet(table, metadata), letters


class OutputChain:
    """Reads, extends and publishes the chain of one partition."""

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition

    async def read(self, number: int) -> Commit | None:
        """Commit `number`, or None if it has not been made (yet: only creating it settles that).

        Raises:
            CorruptObject: the file is not what was written there.
        """
        key = self._layout.output_file(self._partition, number)
        footer = await read_footer(self._store, key)
        if footer is None:
            return None
        elsewhere = None
        if (put_id := footer.metadata.get(_LARGE)) is not None:
            place = self._layout.large_letters(self._partition, put_id)
            stored = await self._store.get(place)
            if stored is None:
                raise CorruptObject(place, f"is not there, and {key} has its dead letters in it")
            elsewhere = stored.body
        return Commit.from_footer(key, footer, elsewhere)

    async def create(self, number: int, put_id: str, body: bytes, letters: bytes | None) -> None:
        """Decide commit `number`. Letters that are too large for its footer are put first, where only it leads.

        Raises:
            Fenced: somebody else decided it; nothing of ours is in the chain.
            StoreUnavailable: not settled; it may still land.
        """
        key = self._layout.output_file(self._partition, number)
        if letters is not None:
            await self._store.put(self._layout.large_letters(self._partition, put_id), letters)
        try:
            await self._store.create(key, body)
        except Conflict:
            raise Fenced(f"{key}: another host has committed it") from None

    async def publish(self, number: int, commit: Commit) -> None:
        """Copy the dead letters of commit `number` to their own place. Doing it twice does nothing.

        Raises:
            Fenced: the commit lies below the boundary: it was trimmed before this worker woke up, and is void.
        """
        if not commit.letters:
            return
        if number < await self.boundary():
            raise Fenced(f"commit {number} of partition {self._partition} was trimmed meanwhile")
        try:
            await self._store.create(self._layout.dead_letter_file(self._partition, number), commit.letters)
        except Conflict:
            return  # published before, and purged since

    async def boundary(self) -> int:
        """The lowest number that belongs to the dataset; 0 if nothing was ever trimmed."""
        key = self._layout.boundary(self._partition)
        stored = await self._store.get(key)
        if stored is None:
            return 0
        with document(key, stored.body, "boundary") as fields:
            return int(fields["lowest"])

    async def newest(self, number: int) -> tuple[int, Commit | None]:
        """Walk from `number` to the end of the chain: the first number that is free, and the commit before it (if passed)."""
        last = None
        while (commit := await self.read(number)) is not None:
            number, last = number + 1, commit
        return number, last


async def read_cursor(store: Store, layout: ProcessorLayout, partition: str) -> Cursor | None:
    """How far the partition is committed: the checkpoint, or the newest commit beyond it. None: never claimed.

    Raises:
        CorruptObject: the checkpoint or a footer is not what was written there.
    """
    checkpoint = await read_checkpoint(store, layout, partition)
    if checkpoint is None:
        return None
    _, newest = await OutputChain(store, layout, partition).newest(checkpoint.number)
    return newest.next if newest and newest.next.sequence >= checkpoint.cursor.sequence else checkpoint.cursor
