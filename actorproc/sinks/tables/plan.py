"""Plans what a transaction does to one partition of a table: a pure function. Model: tests/protocol/table_model.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from math import inf
from typing import NamedTuple

from actorproc.output.output_files import key_of
from actorproc.retention.boundary import Boundary, CompactedRange
from actorproc.sinks.tables.protocol import AddedFile, NamedFile, OtherFile, Place, RemovedFile
from actorproc.storage.names import ProcessorLayout


class ListedCommit(NamedTuple):
    """An original that was there before the boundary was read."""

    file: AddedFile
    mark: int
    """Of its put-id."""
    reset: int | None = None
    """The sequence to which it sets the partition, if it is a reset."""


class ListedRange(NamedTuple):
    """A compacted file that the boundary names, and the table does not."""

    file: AddedFile
    rows: Sequence[int]
    """Of each commit."""
    reset: int | None = None
    """The sequence to which its first commit sets the partition, if that is a reset. No other one is (rule `apart`)."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What a plan rests on. The table was loaded first, then commits were listed, then the boundary was read.

    Attributes:
        place: of the table; None: it has none, and begins at `start`.
        ends: the number after the last commit, of each named file that is compacted, by key.
        commits: originals, by number.
        ranges: by the number of their first commit.
        anew: the table was registered anew: what it names and where it is do not count, and it becomes what the chain
            is from `start` on.
        settled: an earlier transaction has taken in this boundary. Only commits behind the position are new.
    """

    partition: str
    place: Place | None
    start: int
    named: Mapping[str, NamedFile]
    boundary: Boundary
    commits: Mapping[int, ListedCommit]
    ranges: Mapping[int, ListedRange] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, OtherFile] = field(default_factory=dict)
    """Files beside these that leave a table that is made anew."""
    anew: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What a transaction does to one partition.

    Attributes:
        taken_back: rows of later records leave the table first: the first new commit is a reset to this sequence.
    """

    place: Place
    adds: Sequence[AddedFile] = ()
    removes: Sequence[RemovedFile] = ()
    taken_back: int | None = None


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The table has all of the partition: there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing can be planned: files are missing. They were replaced or deleted since the table was loaded, or are lost.

    Attributes:
        reason: for people.
        seen: `Boundary.changes`. If a later plan says the same of this boundary, the files are lost.
    """

    reason: str
    seen: int


UP_TO_DATE = UpToDate()


def plan(layout: ProcessorLayout, view: PartitionView, *, replaces: bool = False) -> PartitionPlan | UpToDate | Stale:
    """The plan.

    Args:
        replaces: rows that a reset takes back leave the table.
    """
    if view.anew:
        return _plan_anew(layout, view, replaces=replaces)
    before = view.place or Place(view.start, -1)
    found = _Plan(layout, view, before, view.named, replaces=replaces).made()
    if isinstance(found, Stale):
        return found
    changes = found.place != view.place or found.adds or found.removes or found.taken_back is not None
    return found if changes else UP_TO_DATE


def _plan_anew(layout: ProcessorLayout, view: PartitionView, *, replaces: bool) -> PartitionPlan | Stale:
    """What the chain says takes the place of all that the table names of the partition."""
    found = _Plan(layout, view, Place(view.start, -1), {}, replaces=replaces).made()
    if isinstance(found, Stale):
        return found
    wanted = {file.key for file in found.adds}
    gone = [RemovedFile(key, view.partition, rows_go=True) for key in view.named if key not in wanted]
    gone += [RemovedFile(name, view.partition, rows_go=True) for name in view.others]
    return replace_fields(
        found, adds=[file for file in found.adds if file.key not in view.named], removes=gone, taken_back=None
    )


class _Plan:
    """One plan in the making."""

    def __init__(
        self,
        layout: ProcessorLayout,
        view: PartitionView,
        before: Place,
        named: Mapping[str, NamedFile],
        *,
        replaces: bool,
    ) -> None:
        self._layout, self._view, self._before, self._named = layout, view, before, named
        self._replaces = replaces
        self._boundary = view.boundary
        self._position = max(before.position, view.boundary.lowest)
        self._seen = view.boundary.changes
        self._adds: dict[str, AddedFile] = {}
        self._removes: dict[str, bool] = {}  # by key: whether rows go

    def made(self) -> PartitionPlan | Stale:
        lowest = self._boundary.lowest
        if not self._view.settled:
            self._removes = {key: True for key, file in self._named.items() if self._end(key, file) <= lowest}
        resets = self._resets() if self._replaces else {}
        taken_back = resets.get(self._position)
        # A reset is the first commit of its transaction (rule `begin`).
        stop = min((number for number in resets if number > self._position), default=inf)
        for held in self._ranges(stop):
            if taken_back is not None and held.next <= self._position:
                self._seen = self._before.seen  # the next transaction: files that it replaces leave with this one
            elif (missing := self._take_range(held)) is not None:
                return Stale(missing, self._boundary.changes)
        self._take_originals(stop)
        removes = [RemovedFile(key, self._view.partition, rows_go) for key, rows_go in self._removes.items()]
        return PartitionPlan(self._place(), list(self._adds.values()), removes, taken_back)

    def _end(self, key: str, file: NamedFile) -> int:
        """The number after the last commit of a named file."""
        return self._view.ends[key] if file.compacted else file.first + 1

    def _ranges(self, stop: float) -> list[CompactedRange]:
        """Those before `stop` that the table does not name."""
        if self._view.settled:
            return []
        return [
            held
            for held in self._boundary.ranges
            if held.first < stop and key_of(self._layout, self._view.partition, held.first, held) not in self._named
        ]

    def _resets(self) -> dict[int, int]:
        """The sequence to which each reset sets the partition, by its number."""
        ranges = {number: found.reset for number, found in self._view.ranges.items()}
        commits = {number: found.reset for number, found in self._view.commits.items()}
        return {number: to for number, to in (ranges | commits).items() if to is not None}

    def _take_range(self, held: CompactedRange) -> str | None:
        """Add a compacted file in the place of what it replaces. Returns which files are missing."""
        within = [
            key
            for key, file in self._named.items()
            if key not in self._removes and held.first <= file.first and self._end(key, file) <= held.next
        ]
        if not within and held.next <= self._position:
            return None  # it has nothing for the table, such as one before its start
        key = key_of(self._layout, self._view.partition, held.first, held)
        if (listed := self._view.ranges.get(held.first)) is None:
            return f"the compacted file {key} is missing"
        has = {number for key in within for number in self._commits_of(key)}
        due = {n for n in range(held.first, min(held.next, self._before.position)) if listed.rows[n - held.first]}
        originals = range(self._position, held.next)
        if has >= due and not (due and originals and self._is_listed(originals)):  # rule `whole`
            self._removes.update(dict.fromkeys(within, False))  # rule `together`
            if sum(listed.rows):
                self._add(replace_fields(listed.file, new_rows=held.next > self._before.position))
        elif self._is_listed(originals):
            self._add_commits(originals)
            if has >= due:  # taken in a transaction of its own, so that no reader of changes gets rows twice
                self._seen = self._before.seen
        else:
            return (
                f"the table cannot take the compacted file {key} as a whole, since it lacks commits of it or begins "
                f"within it, and the commits {originals.start} to {originals.stop - 1} exist nowhere else"
            )
        self._position = max(self._position, held.next)
        return None

    def _commits_of(self, key: str) -> range:
        file = self._named[key]
        return range(file.first, self._end(key, file))

    def _is_listed(self, numbers: range) -> bool:
        return all(number in self._view.commits for number in numbers)

    def _take_originals(self, stop: float) -> None:
        end = self._position
        while end < stop and end in self._view.commits and end >= self._boundary.originals:  # rule `void`
            end += 1
        self._add_commits(range(self._position, end))
        self._position = end

    def _add_commits(self, numbers: range) -> None:
        for number in numbers:
            if (commit := self._view.commits[number]).file.rows:
                self._add(commit.file)

    def _add(self, file: AddedFile) -> None:
        if file.key not in self._named:
            self._adds[file.key] = file

    def _place(self) -> Place:
        if self._position == self._before.position:
            return Place(self._position, self._seen, self._before.mark)
        last = self._view.commits.get(self._position - 1)
        return Place(self._position, self._seen, 0 if last is None else last.mark)
