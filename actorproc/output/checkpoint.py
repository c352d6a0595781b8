"""Checkpoints: how far each partition is committed. One small document per partition, owned by one epoch at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from actorproc.counts import Counts
from actorproc.errors import Fenced, StaleEpoch
from actorproc.records import Cursor
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store


class StateObject(msgspec.Struct, frozen=True):
    """An object below `state/`: changes of keyed state, committed up to the commit `label`."""

    label: int
    put_id: str
    """In its name, after the label."""
    size: int
    """Bytes of its keys and values."""


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """An operator has set the cursor: commit `number` ends at `first`, and processing goes on from `next`."""

    id: str
    """Of the command, which may reset many partitions."""
    number: int
    first: Cursor
    next: Cursor
    time: float
    """Of the commit: seconds since 1970."""
    who: str
    reason: str = ""
    clears_state: bool = False
    """All keyed state is dropped."""
    back: bool = True
    """Records are repeated. A reset forward does not go back, even if the partition has passed `next` meanwhile."""


RESETS_KEPT = 8
"""Resets that a checkpoint lists. A command that is run again after so many others is carried out a second time."""


WITH_STATE, WITH_END, WITH_RESETS, WITH_DEPTH = 2, 3, 4, 5
"""Format versions of commits and checkpoints that older hosts misread: with keyed state, of a partition that has
ended, with resets or inherited state, and of a partition that follows others."""


class Checkpoint(Document, frozen=True):
    """A committed cursor, and the number of the output file from which the next owner reads the chain."""

    newest_format_version = WITH_DEPTH

    epoch: int
    number: int
    cursor: Cursor
    totals: Counts = Counts()
    host: str = ""
    time: float = 0.0
    """When the cursor or number last changed: seconds since 1970 by the host's clock, but never before a commit that
    the checkpoint has passed. 0 for a new partition."""
    ahead: bool = False
    """With at-most-once delivery: `cursor` is the end of a batch whose results are not all committed yet."""
    state: tuple[StateObject, ...] = ()
    """Oldest first: they hold all keyed state that was committed below `number`."""
    stream_time: float | None = None
    """Of a handler with timers: the greatest timestamp of the records up to `cursor`, in seconds since 1970."""
    identities: tuple[str, ...] = ()
    """Of a queue: names the latest messages up to `cursor`, oldest first."""
    ended: bool = False
    """The last file of the chain says that nothing follows it."""
    resets: tuple[Reset, ...] = ()
    """The latest ones below `number`, oldest first."""
    parents: tuple[str, ...] = ()
    """The partitions that this one follows, and whose keyed state it has taken."""
    inherited: StateObject | None = None
    """What it has taken. A merge compares with it: what was changed since then counts."""
    depth: int = 0
    """One more than the greatest depth of its parents; 0: it has none. Of two rows with one key, that of the deeper
    partition is the newer one."""


class CheckpointKeeper:
    """The checkpoint of one partition in the hands of one owner, from `claim` to the first refused write."""

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str, *, host: str, epoch: int) -> None:
        self._document = SharedDocument(store, layout.checkpoint(partition), Checkpoint)
        self._host = host
        self._epoch = epoch
        self.current = Checkpoint(epoch, 0, Cursor(""))
        self.cut_off = False
        """Whether an earlier owner ended in the middle of a batch with at-most-once delivery."""

    async def claim(self, first: Callable[[], Awaitable[Checkpoint]]) -> Checkpoint:
        """Write the epoch of this owner into the checkpoint. Every later write of an earlier owner is refused.

        Args:
            first: returns the first checkpoint; called if there is none yet.

        Raises:
            StaleEpoch: the checkpoint has a later epoch.
        """
        while True:
            found = await self._document.read()
            if found is None:
                claimed = await first()
            elif found.epoch <= self._epoch:
                claimed = replace(found, ahead=False)
            else:
                why = f"epoch {found.epoch} of {found.host} is past ours, {self._epoch}"
                raise StaleEpoch(self._document.key, found.epoch, why)
            self.cut_off = self.cut_off or (found is not None and found.ahead)
            try:
                return await self._write(claimed)
            except Conflict:
                continue

    async def advance(
        self,
        number: int,
        cursor: Cursor,
        totals: Counts,
        time: float,
        *,
        ahead: bool = False,
        state: tuple[StateObject, ...] = (),
        stream_time: float | None = None,
        identities: tuple[str, ...] = (),
        ended: bool = False,
        resets: tuple[Reset, ...] = (),
    ) -> None:
        """Move the checkpoint.

        Raises:
            Fenced: another owner has written it.
        """
        plain = WITH_END if ended else WITH_STATE if state else 1
        plain = WITH_RESETS if self.current.inherited or resets else plain
        moved = replace(
            self.current,
            format_version=WITH_DEPTH if self.current.depth else plain,
            number=number, cursor=cursor, totals=totals, time=time, ahead=ahead, state=state,
            stream_time=stream_time, identities=identities, ended=ended, resets=resets,
        )  # fmt: skip
        try:
            await self._write(moved)
        except Conflict as conflict:
            stored = conflict.stored
            found = Checkpoint.from_json(self._document.key, stored.body) if stored else None
            raise self._fenced(found) from None

    async def check(self) -> None:
        """Raises Fenced: another owner has written the checkpoint."""
        mine = self.current
        if (found := await self._document.read()) != mine:
            raise self._fenced(found)

    def _fenced(self, found: Checkpoint | None) -> Fenced:
        owner = "nobody (it was deleted)" if found is None else f"{found.host} with epoch {found.epoch}"
        return Fenced(f"{self._document.key}: {owner} has it now")

    async def _write(self, checkpoint: Checkpoint) -> Checkpoint:
        self.current = await self._document.swap(replace(checkpoint, epoch=self._epoch, host=self._host))
        return self.current


async def read_checkpoint(store: Store, layout: ProcessorLayout, partition: str) -> Checkpoint | None:
    """The stored checkpoint. It lags: files from its number on may be committed.

    Raises:
        CorruptObject: it is corrupt.
    """
    return await SharedDocument(store, layout.checkpoint(partition), Checkpoint).read()
