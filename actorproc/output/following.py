"""A partition's commits, one after the other, as those see them who follow: where their rows are, and where they end."""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.errors import SourceError
from actorproc.layout import ProcessorLayout, number_of, numbered
from actorproc.output.boundary import Boundary, Range, read_boundary
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.checkpoints import read_checkpoint
from actorproc.output.compacted import Contents
from actorproc.output.files import OutputFiles
from actorproc.parquet import footer_of, read_footer
from actorproc.store import Store


@dataclass(frozen=True, slots=True)
class Committed:
    """The rows of a commit: those from `skip` up to `stop` of a file. `before`: rows of the partition before the first.
    `time`: when it was made, in seconds since 1970, by its host's clock."""

    key: str
    body: bytes
    skip: int
    stop: int
    before: int
    time: float

    @property
    def rows(self) -> int:
        return self.stop - self.skip


@dataclass(frozen=True, slots=True)
class Place:
    """Between two commits of a partition: the `number` that comes next, and how many rows come before it."""

    number: int
    rows: int


class Following:
    """Reads the commits of one partition.

    Raises (everywhere):
        CorruptObject: a file is not what was written there.
        SourceError: commits that were to be read were trimmed, or deleted.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition
        self._chain = OutputChain(store, layout, partition)
        self._files = OutputFiles(layout)
        self._boundary: Boundary | None = None
        self._held: tuple[str, bytes, Contents] | None = None  # the compacted file that was read last

    async def commit(self, number: int) -> Committed | None:
        """Commit `number`; None: it has not been made (yet), as far as one request tells: see `check_end`."""
        boundary = self._boundary or await self._look()
        if (held := self._in_held(number)) is not None:
            return held
        self._held = None
        if number >= boundary.originals:
            key = self._layout.output_file(self._partition, number)
            stored = await self._store.get(key)
            if stored is None:
                return None
            if number >= (await self._look()).originals:  # only now: what is read below that may be void
                commit = Commit.without_letters(key, footer_of(key, stored.body))
                return Committed(key, stored.body, 0, commit.rows, commit.totals.rows - commit.rows, commit.time)
        found = await self._files.fetch(self._store, self._partition, number)
        lowest = (await self._look()).lowest
        if found is None or number < lowest:
            raise self._lost(number, lowest, f"output below {lowest} was trimmed")
        key, body = found
        self._held = key, body, Contents.from_metadata(key, footer_of(key, body).metadata)
        return self._in_held(number)

    def _in_held(self, number: int) -> Committed | None:
        if self._held is None:
            return None
        key, body, contents = self._held
        if not contents.first <= number < contents.next:
            return None
        part = contents.part(key, number, number + 1)
        before = _before(contents, number)
        return Committed(key, body, part.skip, part.stop, before, float(contents.times[number - contents.first]))

    async def check_end(self, number: int) -> bool:
        """See that where there is no commit `number` the partition ends: that nothing was trimmed or deleted from there on.

        Returns:
            Whether it is so; False: the commit was made, or compacted, meanwhile.
        """
        boundary = await self._look()
        if number < boundary.lowest:
            raise self._lost(number, boundary.lowest, f"output below {boundary.lowest} was trimmed")
        if number < boundary.originals:
            return False
        folder = self._layout.output_dir(self._partition)
        after = folder + numbered(number - 1, ".parquet") if number else ""
        later = (await self._store.list(folder, after, 1)).entries
        if later and number_of(later[0].key) > number and await self._chain.read(number) is None:
            if number < (await self._look()).originals:
                return False
            raise self._lost(number, number_of(later[0].key), "the files before it were deleted by hand")
        return not later

    async def first(self) -> Place:
        """Where the partition begins: after what was trimmed."""
        return await self._before((await self._look()).lowest)

    async def end(self) -> Place:
        """Where the partition ends now."""
        checkpoint = await read_checkpoint(self._store, self._layout, self._partition)
        if checkpoint is None:
            return Place(0, 0)
        number, newest = await self._chain.newest(checkpoint.number)
        return Place(number, newest.totals.rows if newest else checkpoint.totals.rows)

    async def at(self, time: float) -> Place:
        """Before the first commit that was made at `time` (seconds since 1970) or later; the end if there is none."""
        low, end = (await self._look()).lowest, await self.end()
        high = end.number
        while low < high:
            middle = (low + high) // 2
            if (await self._made(middle))[1] >= time:
                high = middle
            else:
                low = middle + 1
        return end if low >= end.number else await self._before(low)

    async def _before(self, number: int) -> Place:
        return Place(number, (await self._made(number))[0] if number else 0)

    async def _made(self, number: int) -> tuple[int, float]:
        """How many rows come before the commit, and when it was made."""
        holder = (await self._look()).range_of(number)
        if holder is not None:
            contents = await self._contents(holder)
            return _before(contents, number), float(contents.times[number - contents.first])
        commit = await self._chain.read(number)
        if commit is None:
            raise self._lost(number, None, "it was trimmed, compacted or deleted meanwhile")
        return commit.totals.rows - commit.rows, commit.time

    async def _contents(self, holder: Range) -> Contents:
        key = self._layout.compacted_file(self._partition, holder.first, holder.put_id)
        footer = await read_footer(self._store, key)
        if footer is None:
            raise self._lost(holder.first, None, "it was trimmed or compacted anew meanwhile")
        return Contents.from_metadata(key, footer.metadata)

    async def _look(self) -> Boundary:
        self._boundary = await read_boundary(self._store, self._layout.boundary(self._partition))
        return self._boundary

    def _lost(self, number: int, found: int | None, why: str) -> SourceError:
        there = "" if found is None else f"the first that can be read is {found}: "
        return SourceError(
            f"partition {self._partition} of {self._layout.processor} in {self._store.url} has lost output from commit "
            f"{number} on, which was to be read next ({there}{why}). Restore the files, or start anew under another "
            "processor name"
        )


def _before(contents: Contents, number: int) -> int:
    """Rows of the partition before those of commit `number`."""
    return int(contents.totals.rows - contents.rows.sum()) + contents.rows_before(number)
