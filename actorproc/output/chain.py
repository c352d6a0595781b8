"""The commit chain of a partition: numbered Parquet files, each of which commits rows, position and dead letters.

Protocol and invariants: docs/protocol.md. Model: tests/protocol/commit_model.py.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from actorproc.counts import Counts
from actorproc.errors import RESTORE, CorruptObject, Fenced
from actorproc.output.attachments import Attachment, put_attachments
from actorproc.output.checkpoint import RESETS_KEPT, WITH_RESETS, Checkpoint, Reset, read_checkpoint
from actorproc.records import Cursor
from actorproc.retention.boundary import read_boundary
from actorproc.storage.backend import Stored
from actorproc.storage.document import Document
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import LARGE_LETTERS, ProcessorLayout
from actorproc.storage.parquet import Footer, footer_of, read_footer, write_parquet
from actorproc.storage.store import Conflict, Store

_COMMIT = "actorproc.commit"
_LETTERS = "actorproc.dead_letters"
_LARGE = "actorproc.large_letters"  # the put-id in the key of dead letters that are stored beside the file

LETTERS_LIMIT = 4 * 2**20
"""Bytes of compressed dead letters in a footer. Parquet readers refuse a footer of some 100 MB."""


class Commit(Document, frozen=True):
    """The footer of an output file: the step from cursor `first` to `next`, final once the file exists."""

    newest_format_version = WITH_RESETS

    host: str
    epoch: int
    first: Cursor
    next: Cursor
    totals: Counts
    """Of the partition, with this commit."""
    time: float
    """Seconds since 1970 by the host's clock, but never before the time of the commit before."""
    rows: int = 0
    letters_size: int = 0
    """Bytes of the dead letters of this step, as JSON lines. They are committed here and published right after."""
    state_size: int = 0
    """Bytes of the keys and values of keyed state that this step changes. They are attached, if there are any."""
    identities: tuple[str, ...] = ()
    """Of a queue: names the latest messages up to `next`, oldest first."""
    ended: bool = False
    """The partition ends here: no commit follows."""
    vanished: bool = False
    """It ends because the source has forgotten it: its unread records are lost."""
    stream_time: float | None = None
    """Of a handler with timers: the greatest timestamp of the records up to `next`, in seconds since 1970."""
    reset: Reset | None = None
    """An operator has set the cursor: `next` may be before `first`."""
    oldest: float | None = None
    """When the oldest record of this step began its way through a chain of processors: of the first one, its timestamp.
    In seconds since 1970; None: the step has no records, or they have no timestamps."""

    def cursor_after(self, cursor: Cursor) -> Cursor:
        """Where a walk at `cursor` is after this commit: at its end, unless the checkpoint was further already.

        Only a reset goes back.
        """
        goes_back = self.reset is not None and self.reset.back
        return self.next if goes_back or self.next.sequence >= cursor.sequence else cursor

    def resets_after(self, resets: tuple[Reset, ...]) -> tuple[Reset, ...]:
        """The latest resets with this commit. `resets`: before it."""
        return (*resets, self.reset)[-RESETS_KEPT:] if self.reset else resets

    @classmethod
    def from_footer(cls, key: str, footer: Footer) -> Commit:
        """Raises CorruptObject if this is not the footer of an output file."""
        return cls.from_json(key, footer.metadata.get(_COMMIT, ""))


def encode_commit(table: pa.Table, commit: Commit, letters: bytes) -> tuple[bytes, tuple[Attachment, ...]]:
    """Encode an output file. CPU-heavy: run it off the loop.

    Returns:
        The file; and the dead letters as its attachment, if they are too large for its footer.
    """
    metadata = {_COMMIT: replace(commit, letters_size=len(letters)).to_json().decode()}
    packed = pa.compress(letters, codec="zstd", asbytes=True) if letters else b""
    if len(packed) > LETTERS_LIMIT:
        return write_parquet(table, {**metadata, _LARGE: commit.put_id}), (Attachment(LARGE_LETTERS, packed),)
    if packed:
        metadata[_LETTERS] = base64.b64encode(packed).decode()
    return write_parquet(table, metadata), ()


def letters_of(key: str, footer: Footer, large: bytes | None = None) -> bytes:
    """The dead letters of a commit as JSON lines. `large`: the compressed letters if they are not in the footer."""
    size = Commit.from_footer(key, footer).letters_size
    try:
        packed = large or base64.b64decode(footer.metadata[_LETTERS]) if size else b""
        return pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True) if size else b""
    except (KeyError, ValueError, OSError) as error:
        raise CorruptObject(key, f"has no valid dead letters ({error}); {RESTORE}") from None


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The end of a chain: `number` is free; `newest` is the commit before it, unless the checkpoint has passed that."""

    number: int
    checkpoint: Checkpoint
    newest: Commit | None
    cursor: Cursor
    """The committed cursor. At most once, the checkpoint is ahead of a commit that was created late."""
    resets: tuple[Reset, ...]
    """The latest ones, oldest first."""
    has_state: bool
    """Whether keyed state was committed since the last reset that cleared it."""

    @classmethod
    def at(cls, checkpoint: Checkpoint) -> ChainEnd:
        """Where a walk begins."""
        known = checkpoint
        return cls(known.number, known, None, known.cursor, known.resets, bool(known.state))

    def after(self, commit: Commit) -> ChainEnd:
        """One commit further."""
        cleared = commit.reset is not None and commit.reset.clears_state
        return ChainEnd(
            self.number + 1, self.checkpoint, commit, commit.cursor_after(self.cursor),
            commit.resets_after(self.resets), not cleared and (self.has_state or commit.state_size > 0),
        )  # fmt: skip

    @property
    def ahead(self) -> bool:
        """Whether the cursor is ahead of the commits: see `Checkpoint.ahead`."""
        newest = self.newest
        return self.checkpoint.ahead and not (newest and newest.next.sequence >= self.cursor.sequence)

    @property
    def totals(self) -> Counts:
        return (self.newest or self.checkpoint).totals

    @property
    def ended(self) -> bool:
        """Whether the partition has ended: nothing is committed any more."""
        return (self.newest or self.checkpoint).ended


class OutputChain:
    """Reads, extends and publishes the chain of one partition."""

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition

    async def read(self, number: int) -> Commit | None:
        """Commit `number`; None if it does not exist yet, which only creating it settles.

        Raises:
            CorruptObject: the file is corrupt.
        """
        key = self._layout.output_file(self._partition, number)
        footer = await read_footer(self._store, key)
        return Commit.from_footer(key, footer) if footer else None

    async def letters(self, number: int) -> bytes:
        """The dead letters of commit `number`, as JSON lines.

        Raises:
            CorruptObject: the file is corrupt, or its large dead letters are missing.
            Fenced: the commit was trimmed or compacted.
        """
        key = self._layout.output_file(self._partition, number)
        footer = await read_footer(self._store, key)
        if footer is None:
            raise self._void(number)
        if (put_id := footer.metadata.get(_LARGE)) is None:
            return letters_of(key, footer)
        large_key = self._layout.attached(LARGE_LETTERS, self._partition, number, put_id)
        stored = await self._store.get(large_key)
        if stored is None:
            raise CorruptObject(large_key, f"is missing; it holds the dead letters of {key}")
        return letters_of(key, footer, stored.body)

    async def check_is_no_copy(self, number: int, commit: Commit, walked: Mapping[str, int]) -> None:
        """Check that commit `number` is not a copy of an earlier one.

        Args:
            walked: the commits before, back to the checkpoint: put-id -> number.

        Raises:
            CorruptObject: it is a copy.
        """
        original = walked.get(commit.put_id)
        if not walked and number and (before := await self.read(number - 1)) and before.put_id == commit.put_id:
            original = number - 1
        if original is not None:
            raise CorruptObject(
                self._layout.output_file(self._partition, number),
                f"is a copy of commit {original}: its rows would be read twice. {RESTORE.capitalize()}, or delete it "
                "if nothing was committed after it",
            )

    def check_follows(self, number: int, commit: Commit, previous: Cursor, reached: Cursor | None) -> None:
        """Check that commit `number` continues the chain.

        Args:
            previous: end of the commit before.
            reached: where the commits before and the checkpoint lead to; None if the checkpoint was lost.

        Raises:
            CorruptObject: commits are missing, or two of them have the same records.
        """
        first = commit.first.sequence
        if first < previous.sequence or (reached is not None and first > reached.sequence):
            upto = previous if reached is None else reached
            raise CorruptObject(
                self._layout.output_file(self._partition, number),
                f"begins after record {first}, but the commits before it end at record {upto.sequence}: commits or the "
                "checkpoint were deleted, or older ones restored. Restore them, or start under another processor name",
            )

    def check_not_below(self, boundary: int, number: int) -> None:
        """Check that a checkpoint that was read after the boundary has passed it, because trims stay below checkpoints.

        Raises:
            CorruptObject: the checkpoint was deleted, or an older one restored.
        """
        if number < boundary:
            raise CorruptObject(
                self._layout.checkpoint(self._partition),
                f"goes on at commit {number}, and commits below {boundary} were trimmed or compacted: the checkpoint "
                "was deleted, or an older one restored. Restore the newest, or start under another processor name",
            )

    async def begun(self) -> bool:
        """Whether any commit exists."""
        return await self._first_from(0) is not None

    async def gap(self, number: int) -> CorruptObject | None:
        """The error to raise if later files exist although `number` does not; else None."""
        later = await self._first_from(number)
        if later is None or await self.read(number) is not None:  # it may have been created meanwhile
            return None
        return CorruptObject(
            self._layout.output_file(self._partition, number),
            f"is missing, although {later} exists and the checkpoint has not passed it: the file was deleted, or an "
            "older checkpoint restored. Restore them, or start under another processor name",
        )

    async def _first_from(self, number: int) -> str | None:
        files = await numbered_files(self._store, self._layout.output_dir(self._partition), number, 1)
        return files[0].entry.key if files else None

    async def create(self, number: int, put_id: str, body: bytes, attachments: tuple[Attachment, ...]) -> None:
        """Decide commit `number`.

        Args:
            attachments: put first, under keys that only this commit names.

        Raises:
            Fenced: another owner has decided it; nothing of ours is in the chain.
            StoreUnavailable: not settled; the commit may still be applied.
            CorruptObject: the existing file is corrupt.
        """
        key = self._layout.output_file(self._partition, number)
        if attachments:
            await put_attachments(self._store, self._layout, self._partition, number, put_id, attachments)
        try:
            await self._store.create(key, body)
        except Conflict as conflict:
            raise Fenced(f"{key}: {_committer(key, conflict.stored)} has committed it") from None

    async def publish(self, number: int, letters: bytes) -> None:
        """Copy the dead letters of commit `number` to their own file. Repeating it does nothing.

        Raises:
            Fenced: the commit is below the boundary, so it was trimmed or compacted while this worker slept.
            CorruptObject: the file has other dead letters.
        """
        if not letters:
            return
        if number < await self.boundary():
            raise self._void(number)
        key = self._layout.dead_letter_file(self._partition, number)
        try:
            await self._store.create(key, letters)
        except Conflict as conflict:
            if conflict.stored is not None and conflict.stored.body:  # else published before, and purged since
                raise CorruptObject(
                    key,
                    f"has other dead letters than commit {number}: it was changed, or restored without the commits. "
                    "Delete it, and it is written again",
                ) from None

    def _void(self, number: int) -> Fenced:
        return Fenced(f"commit {number} of partition {self._partition} was trimmed or compacted meanwhile")

    async def boundary(self) -> int:
        """The lowest number that counts in `output/`; 0 if nothing was ever trimmed or compacted."""
        return (await read_boundary(self._store, self._layout.boundary(self._partition))).originals

    async def tip(self) -> ChainEnd | None:
        """The end of the chain, found by walking from the checkpoint; None if the partition was never claimed.

        Raises:
            CorruptObject: the checkpoint or a footer is corrupt.
        """
        checkpoint = await read_checkpoint(self._store, self._layout, self._partition)
        if checkpoint is None:
            return None
        end = ChainEnd.at(checkpoint)
        while (commit := await self.read(end.number)) is not None:
            end = end.after(commit)
        return end

    async def moved_at(self, tip: ChainEnd) -> float | None:
        """When the newest commit moved the position, in seconds since 1970; None: none ever did.

        The checkpoint has the time at which it was written, for example at a handoff long after that commit.
        """
        checkpoint, newest = tip.checkpoint, tip.newest
        if newest is None and checkpoint.number:
            newest = await self.read(checkpoint.number - 1)
        if newest is not None and newest.next.sequence >= tip.cursor.sequence:
            return newest.time
        return checkpoint.time or None  # moved without rows; or not at all, and bears no time


def _committer(key: str, stored: Stored | None) -> str:
    if stored is None:
        return "somebody (it was trimmed or compacted since)"
    found = Commit.from_footer(key, footer_of(key, stored.body))
    return f"{found.host} with epoch {found.epoch}"


async def read_cursor(store: Store, layout: ProcessorLayout, partition: str) -> Cursor | None:
    """The committed cursor of the partition; see `OutputChain.tip`."""
    tip = await OutputChain(store, layout, partition).tip()
    return tip.cursor if tip else None
