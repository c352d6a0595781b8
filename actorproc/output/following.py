"""A partition's committed files, one after the other, as those see them who follow: where they are, and where they end."""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.errors import SourceError
from actorproc.layout import ProcessorLayout, number_of, numbered
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.checkpoints import read_checkpoint
from actorproc.parquet import footer_of
from actorproc.store import Store


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file with all its rows, and the number from which to go on. `before`: rows of the partition before its first.
    `time`: when it was committed, in seconds since 1970, by its host's clock."""

    key: str
    body: bytes
    next: int
    before: int
    rows: int
    time: float


@dataclass(frozen=True, slots=True)
class Place:
    """Between two files of a partition: the `number` that comes next, and how many rows come before it."""

    number: int
    rows: int


class Following:
    """Reads the chain of one partition.

    Raises (everywhere):
        CorruptObject: a file is not what was written there.
        SourceError: files that were to be read were trimmed, or deleted.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition
        self._chain = OutputChain(store, layout, partition)

    async def file(self, number: int) -> CommittedFile | None:
        """The file in which commit `number` is; None: there is none (yet). One request more if it is there."""
        key = self._layout.output_file(self._partition, number)
        stored = await self._store.get(key)
        if stored is None:
            return None
        if number < (lowest := await self._chain.boundary()):  # only now: what is read below it may be void
            raise self._lost(number, lowest, f"output below {lowest} was trimmed")
        commit = Commit.from_footer(key, footer_of(key, stored.body), with_letters=False)
        return CommittedFile(key, stored.body, number + 1, commit.totals.rows - commit.rows, commit.rows, commit.time)

    async def check_end(self, number: int) -> None:
        """See that where there is no file `number` the partition ends: that nothing was trimmed or deleted from there on."""
        if number < (lowest := await self._chain.boundary()):
            raise self._lost(number, lowest, f"output below {lowest} was trimmed")
        folder = self._layout.output_dir(self._partition)
        after = folder + numbered(number - 1, ".parquet") if number else ""
        later = (await self._store.list(folder, after, 1)).entries
        if later and number_of(later[0].key) > number and await self._chain.read(number) is None:
            raise self._lost(number, number_of(later[0].key), "the files before it were deleted by hand")

    async def first(self) -> Place:
        """Where the partition begins: after what was trimmed."""
        return await self._before(await self._chain.boundary())

    async def end(self) -> Place:
        """Where the partition ends now."""
        checkpoint = await read_checkpoint(self._store, self._layout, self._partition)
        if checkpoint is None:
            return Place(0, 0)
        number, newest = await self._chain.newest(checkpoint.number)
        return Place(number, newest.totals.rows if newest else checkpoint.totals.rows)

    async def at(self, time: float) -> Place:
        """Before the first file that was committed at `time` (seconds since 1970) or later; the end if there is none."""
        low, end = await self._chain.boundary(), await self.end()
        high = end.number
        while low < high:
            middle = (low + high) // 2
            if (await self._commit(middle)).time >= time:
                high = middle
            else:
                low = middle + 1
        return end if low >= end.number else await self._before(low)

    async def _before(self, number: int) -> Place:
        if number == 0:
            return Place(0, 0)
        commit = await self._commit(number)
        return Place(number, commit.totals.rows - commit.rows)

    async def _commit(self, number: int) -> Commit:
        commit = await self._chain.read(number)
        if commit is None:
            raise self._lost(number, None, "it was trimmed or deleted meanwhile")
        return commit

    def _lost(self, number: int, found: int | None, why: str) -> SourceError:
        there = "" if found is None else f"the first that can be read is {found}: "
        return SourceError(
            f"partition {self._partition} of {self._layout.processor} in {self._store.url} has lost output from commit "
            f"{number} on, which was to be read next ({there}{why}). Restore the files, or start anew under another "
            "processor name"
        )
