"""The planner of tables in the place of the model's own: every interleaving keeps what the model checks."""

from __future__ import annotations

from functools import lru_cache

import pytest

from actorproc.retention.boundary import Boundary, CompactedRange
from actorproc.sinks.tables.plan import ListedCommit, ListedRange, PartitionPlan, PartitionView, Stale, plan
from actorproc.sinks.tables.protocol import AddedFile, NamedFile, OtherFile
from actorproc.sinks.tables.protocol import Place as TablePlace
from actorproc.storage.names import ProcessorLayout
from tests.protocol import table_model
from tests.protocol.table_model import HOLDS, Change, Committer, File, Model, Place

LAYOUT = ProcessorLayout("numbers")


class Planned(Model):
    """The model, with the product's planner."""

    def _plan(self, p: int, c: Committer, listed: frozenset[int], b: table_model.Boundary) -> Change | None:
        named = frozenset(f for f in c.files if f.partition == p)
        change = planned(
            self.scripts[p], p, c.places[p], named, listed, b, replaces=self.replaces, anew=c.is_anew
        )  # fmt: skip
        if change is None:
            return None
        if change.taken_back is None:
            return change.change
        adds, removes = set(change.change.adds), set(change.change.removes)
        self._reset(p, change.taken_back, set(named - removes), adds, removes)
        return change.change._replace(adds=frozenset(adds), removes=frozenset(removes))


class Made:
    """A change of the planner, and the number of the reset that it begins with."""

    def __init__(self, change: Change, taken_back: int | None) -> None:
        self.change, self.taken_back = change, taken_back


@lru_cache(maxsize=1_000_000)
def planned(
    script: table_model.Script, p: int, place: Place, named: frozenset[File], listed: frozenset[int],
    b: table_model.Boundary, *, replaces: bool, anew: bool,
) -> Made | None:  # fmt: skip
    """None: files are missing."""
    files = {key_of(f): f for f in named if f.ours}
    ranges = tuple(CompactedRange(first, end, f"x{end - 1}", 1, 1, 0, 0.0, 0.0) for first, end in b.ranges)
    rows = [int(commit is None) for commit in script]
    others = {str(f): f for f in named if not f.ours}
    view = PartitionView(
        str(p), None if anew else TablePlace(place.position, place.seen, place.put_id), 0 if anew else place.position,
        {key: NamedFile(str(p), f.commits[0], len(f.commits) > 1) for key, f in files.items()},
        Boundary(b.lowest, ranges, changes=b.version),
        {n: ListedCommit(added(File(p, (n,)), rows[n]), 0, script[n]) for n in sorted(listed)},
        {
            first: ListedRange(
                added(File(p, tuple(range(first, end))), sum(rows[first:end])), rows[first:end], script[first]
            )
            for first, end in b.ranges
        },
        {key: f.commits[-1] + 1 for key, f in files.items()},
        dict.fromkeys(others, OtherFile(None, str(p))) if anew else {}, anew,
    )  # fmt: skip
    made = plan(LAYOUT, view, replaces=replaces)
    if isinstance(made, Stale):
        return None
    if not isinstance(made, PartitionPlan):
        return Made(Change(p, place, frozenset(), frozenset()), None)
    adds = frozenset(file_of(p, file.key, b) for file in made.adds)
    removes = frozenset((files | others)[file.key] for file in made.removes)
    position = max(place.position, b.lowest)
    taken_back = position if made.taken_back is not None else None
    return Made(Change(p, Place(made.place.position, made.place.seen, place.put_id), adds, removes), taken_back)


def key_of(f: File) -> str:
    if len(f.commits) == 1:
        return LAYOUT.output_file(str(f.partition), f.commits[0])
    return LAYOUT.compacted_file(str(f.partition), f.commits[0], f"x{f.commits[-1]}")


def added(f: File, rows: int) -> AddedFile:
    return AddedFile(key_of(f), str(f.partition), 1, rows, 0.0)


def file_of(p: int, key: str, b: table_model.Boundary) -> File:
    first = int(key.rpartition("/")[2][:20])
    if "compacted" not in key:
        return File(p, (first,))
    return File(p, tuple(range(first, next(end for start, end in b.ranges if start == first))))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDS)
def test_the_planner_keeps_what_the_model_checks(name: str) -> None:
    model = HOLDS[name]
    found = Planned(**{field: getattr(model, field) for field in Model.__dataclass_fields__}).search()
    assert (found.why, found.complete) == (None, True), "\n".join(found.trace)
    assert found.states > 100
