"""Compaction step by step: plans, merges, the switch, deletion, and readers at any moment."""

from __future__ import annotations

import pickle
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc import Processor
from actorproc.admin.resets import Resets
from actorproc.errors import CorruptObject, Fenced
from actorproc.output.chain import OutputChain
from actorproc.output.compaction import CompactionPlan, FileGroup, Merged, grouped, merge, plan, sweep, switch
from actorproc.output.follower import ChainFollower
from actorproc.output.output_files import OutputFiles
from actorproc.output.row_reader import all_slices, newest_slices, partitions_with_state, read_rows
from actorproc.output.schema_document import read_schema
from actorproc.retention.boundary import CompactedRange, raise_boundary, read_boundary
from actorproc.retention.kept_files import KeptFiles
from actorproc.rows.output_schema import output_schema
from actorproc.sinks.entries import register_sink
from actorproc.spark.options import ReadOptions, parse_read_options
from actorproc.spark.planning import initial_numbers, latest_numbers, plan_batch, plan_micro_batch, split_into_tasks
from actorproc.spark.task_reader import read_spans
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from tests.spark import committing
from tests.spark.committing import QUICK, Fleet, Grown, Numbers

LAYOUT = ProcessorLayout("numbers")
LARGE = 2**30


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore())


@pytest.fixture
async def fleet(store: Store) -> Fleet:
    fleet = Fleet(store)
    await fleet.commit(p0=50, p1=30)
    return fleet


async def planned(store: Store, target_size: int = LARGE) -> list[CompactionPlan]:
    partitions = await partitions_with_state(store, LAYOUT)
    return await plan(store, LAYOUT, partitions, target_size=target_size, older_than=0)


async def merged(store: Store, group: FileGroup) -> CompactedRange:
    made = await maybe_merged(store, group)
    assert made is not None
    ((of, result),) = made
    assert of == group
    return result


async def maybe_merged(store: Store, group: FileGroup) -> list[Merged] | None:
    schema = await read_schema(store, LAYOUT)
    assert schema is not None
    return await merge(store, LAYOUT, group, output_schema(schema))


async def compact(store: Store, target_size: int = LARGE) -> list[CompactedRange]:
    """Compact everything that is due. Returns the new ranges."""
    done = []
    for found in await planned(store, target_size):
        for group in found.groups:
            if (made := await maybe_merged(store, group)) is not None:  # else somebody else was faster
                done += await switch(store, LAYOUT, found, made)
    return done


async def rows(store: Store) -> committing.Rows:
    """The rows as `actorproc output` reads them. Checks that none is there twice, and their order."""
    found = []
    async for piece in all_slices(store, LAYOUT, await partitions_with_state(store, LAYOUT)):
        async for batch in read_rows(store, piece):
            found += [(piece.partition, row["_sequence"], row["n"]) for row in batch.to_pylist()]
    assert found == sorted(set(found))
    return set(found)


async def delete_originals(store: Store) -> int:
    return await committing.delete_originals(store, await partitions_with_state(store, LAYOUT))


# Choice of files


def listed(sizes: list[tuple[int, bool]]) -> list[DataFile]:
    return [DataFile(n, n + 1, str(n), size, 0.0, "" if done else "t") for n, (size, done) in enumerate(sizes)]


def sizes_in(groups: list[list[DataFile]]) -> list[list[int]]:
    return [[file.size for file in group] for group in groups]


@pytest.mark.parametrize(
    ("compacted", "originals", "expected"),
    [
        ([], [1, 1, 1], [[1, 1, 1]]),
        ([], [40, 40, 40, 1], [[40, 40], [40, 1]]),
        ([], [1], []),
        ([90], [1, 1], [[1, 1]]),
        ([90], [60], []),
        ([], [60, 70], []),
        ([], [60, 70, 1, 1], [[60], [70], [1, 1]]),
        ([20], [10, 1], [[10, 1]]),
        ([20], [10, 10], [[20, 10, 10]]),
        ([20, 10], [], []),
        ([20, 20], [], [[20, 20]]),
        ([90, 30, 20, 10], [5, 5], [[30, 20, 10, 5, 5]]),
    ],
)
def test_small_neighbours_are_joined_and_large_files_stay(
    compacted: list[int], originals: list[int], expected: list[list[int]]
) -> None:
    files = listed([(size, True) for size in compacted] + [(size, False) for size in originals])
    assert sizes_in(grouped(files, 100)) == expected


@given(st.lists(st.integers(1, 150)), st.lists(st.integers(1, 150)))
def test_groups_are_neighbours_and_no_original_before_them_stays(compacted: list[int], originals: list[int]) -> None:
    files = listed([(size, True) for size in compacted] + [(size, False) for size in originals])
    groups = grouped(files, 100)
    flat = [file for group in groups for file in group]
    assert flat == sorted(flat)
    for group in groups:
        assert [file.number for file in group] == list(range(group[0].number, group[-1].next))
        assert len(group) > 1 or not group[0].compacted
        assert len(group) == 1 or sum(file.size for file in group) <= 100
    taken = [file.number for file in flat if not file.compacted]
    assert taken == list(range(len(compacted), len(compacted) + len(taken)))


async def test_new_and_recent_commits_are_not_compacted(store: Store, fleet: Fleet) -> None:
    first, _ = await planned(store)
    assert first.groups[0].originals == range(4)
    assert not any(found.groups for found in await plan(store, LAYOUT, ["0", "1"], target_size=LARGE, older_than=60))


async def test_a_file_deleted_by_hand_is_named(store: Store, fleet: Fleet) -> None:
    await store.delete(LAYOUT.output_file("0", 2))
    one, other = await planned(store)
    assert one.lost is not None
    assert re.search(r"partition=0/0*2.parquet in memory:// is missing", str(one.lost))
    assert [group.originals for group in one.groups] == [range(2)], "what comes before it is done"
    assert (other.lost, len(other.groups)) == (None, 1)


# Readers during a compaction


async def test_rows_are_the_same_after_each_step_of_a_compaction(store: Store, fleet: Fleet) -> None:
    assert len(await compact(store)) == 2
    assert await rows(store) == fleet.expected()
    assert await delete_originals(store) == 6
    assert await rows(store) == fleet.expected()
    await fleet.commit(Grown, p0=40, p2=20)
    assert await rows(store) == fleet.expected()
    assert [(made.first, made.next) for made in await compact(store)] == [(0, 8)]
    await delete_originals(store)
    assert await rows(store) == fleet.expected()
    boundary = await read_boundary(store, LAYOUT.boundary("0"))
    assert [(r.first, r.next, r.rows, r.sequence) for r in boundary.ranges] == [(0, 8, 72, 79)]
    assert await compact(store) == []


async def test_the_newest_rows_are_found_in_compacted_files_too(store: Store, fleet: Fleet) -> None:
    await compact(store)

    async def tail(count: int) -> list[int]:
        return [
            row["n"]
            for piece in await newest_slices(store, LAYOUT, ["0"], count)
            async for batch in read_rows(store, piece)
            for row in batch.to_pylist()
        ]

    expected = sorted(n for partition, n, _ in fleet.expected() if partition == "0")
    assert [await tail(count) for count in (3, 12, 1000)] == [expected[-3:], expected[-12:], expected]


async def test_the_put_id_of_each_commit_is_in_the_compacted_file(store: Store, fleet: Fleet) -> None:
    chain = OutputChain(store, LAYOUT, "0")
    commits = [await chain.read(number) for number in range(4)]
    await compact(store)
    await fleet.commit(p0=30)
    commits += [await chain.read(number) for number in range(4, 7)]
    await compact(store)  # merges the compacted file, too
    await delete_originals(store)
    file = await ChainFollower(store, LAYOUT, "0").file(3, no_wait)
    assert file is not None
    assert file.put_ids == tuple(commit and commit.put_id for commit in commits)
    assert file.next == 7


async def no_wait(size: int) -> None:
    """Memory is there."""


async def test_a_compacted_file_with_a_reset_begins_with_it(store: Store, fleet: Fleet) -> None:
    for _ in range(2):
        resets = Resets(store, LAYOUT, fleet.settings, fleet.stream, "ann")
        await resets.carry_out(await resets.plan(20), {"to": "20"})
        await fleet.commit(p0=20)
        await compact(store)
    boundary = await read_boundary(store, LAYOUT.boundary("0"))
    assert [r.reset for r in boundary.ranges] == [False, True, True]
    follower = ChainFollower(store, LAYOUT, "0")
    files = [await follower.file(r.first, no_wait) for r in boundary.ranges]
    assert [file and file.reset and file.reset.next.sequence for file in files] == [None, 19, 19]
    assert await compact(store) == [], "they are not merged any more"


async def test_a_late_write_in_place_of_a_deleted_original_is_void(store: Store, fleet: Fleet) -> None:
    late = await store.get(LAYOUT.output_file("0", 2))
    letters = await OutputChain(store, LAYOUT, "0").letters(2)
    assert late is not None
    assert letters
    pieces = [piece async for piece in all_slices(store, LAYOUT, ["0", "1"])]
    await compact(store)
    await delete_originals(store)
    await store.create(LAYOUT.output_file("0", 2), late.body)
    assert await rows(store) == fleet.expected()
    with pytest.raises(Fenced, match="commit 2 of partition 0 was trimmed or compacted meanwhile"):
        await OutputChain(store, LAYOUT, "0").publish(2, letters)
    assert await delete_originals(store) == 1

    await store.create(LAYOUT.output_file("0", 0), late.body[:-1] + b"!")
    found = [n for piece in pieces async for batch in read_rows(store, piece) for n in batch["n"].to_pylist()]
    assert sorted(found) == sorted(n for _, n, _ in fleet.expected()), "who listed before looks again"


async def test_a_boundary_within_a_compacted_file_hides_the_rows_below_it(store: Store, fleet: Fleet) -> None:
    await compact(store)
    await raise_boundary(store, LAYOUT.boundary("0"), 2)
    assert await rows(store) == {row for row in fleet.expected() if row[0] == "1" or row[1] >= 20}
    await fleet.commit(p0=100)
    await compact(store)  # leaves it as it is
    assert await rows(store) == {row for row in fleet.expected() if row[0] == "1" or row[1] >= 20}
    after = await raise_boundary(store, LAYOUT.boundary("0"), 4)
    assert [r.first for r in after.ranges] == [4]


# Killed, twice, asleep


async def test_only_one_of_two_compactions_is_switched_to(store: Store, fleet: Fleet) -> None:
    one, other = (await planned(store))[0], (await planned(store, 10_000))[0]
    ours, theirs = await merged(store, one.groups[0]), await merged(store, other.groups[0])
    assert await switch(store, LAYOUT, one, [(one.groups[0], ours)])
    assert await switch(store, LAYOUT, other, [(other.groups[0], theirs)]) == []
    assert await sweep(store, LAYOUT, "0", keep=3600, kept=KeptFiles()) == []
    gone = await sweep(store, LAYOUT, "0", keep=0, kept=KeptFiles())
    assert [entry.key for entry in gone] == [LAYOUT.compacted_file("0", 0, theirs.put_id)]
    assert await rows(store) == fleet.expected()


async def test_a_merge_of_replaced_files_is_refused(store: Store, fleet: Fleet) -> None:
    await fleet.commit(p0=100)
    one, other = (await planned(store))[0], (await planned(store, 9_000))[0]
    first, *_, last = other.groups
    late = await merged(store, last)
    assert await switch(store, LAYOUT, other, [(first, await merged(store, first))])
    assert await switch(store, LAYOUT, one, [(one.groups[0], await merged(store, one.groups[0]))]) == []
    assert await switch(store, LAYOUT, other, [(last, late)]) == [], "there would be a gap before it"

    await compact(store, 9_000)
    files = (await OutputFiles(LAYOUT).files(store, {"0": 0}))["0"]
    pairs = [FileGroup.of("0", files[at : at + 2]) for at in (0, 1)]
    made = [(pair, await merged(store, pair)) for pair in pairs]
    again = (await planned(store))[0]
    assert [len(await switch(store, LAYOUT, again, [done])) for done in made] == [1, 0], "they overlap"
    assert await rows(store) == fleet.expected()


async def test_a_compactor_whose_file_was_swept_cannot_publish_it(store: Store, fleet: Fleet) -> None:
    found = (await planned(store))[0]
    made = await merged(store, found.groups[0])
    assert len(await sweep(store, LAYOUT, "0", keep=0, kept=KeptFiles())) == 1
    assert await switch(store, LAYOUT, found, [(found.groups[0], made)]) == []
    assert await rows(store) == fleet.expected()
    await compact(store)
    assert await rows(store) == fleet.expected()


async def test_a_compacted_file_that_was_replaced_a_moment_ago_stays(store: Store, fleet: Fleet) -> None:
    await compact(store)
    await fleet.commit(p0=100)
    await compact(store)
    assert await sweep(store, LAYOUT, "0", keep=60, kept=KeptFiles()) == []
    assert len(await sweep(store, LAYOUT, "0", keep=0, kept=KeptFiles())) == 1
    assert await rows(store) == fleet.expected()


class Meddled(MemoryStore):
    """Where somebody does something right after the boundaries were listed, each in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Callable[[], Awaitable[object]] | None] = []

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        listing = await super().list(prefix, after, limit)
        if prefix == LAYOUT.boundaries and self.turns and (turn := self.turns.pop(0)) is not None:
            turns, self.turns = self.turns, []
            await turn()
            self.turns = turns
        return listing


@pytest.mark.parametrize("turns", [("01",), (None, "01"), (None, None, "01"), ("1", "0"), ("0", None, "1")])
async def test_a_plan_is_of_one_moment_despite_another_compaction(
    turns: tuple[str | None, ...],
) -> None:
    backend = Meddled()
    store = Store(backend)
    fleet = Fleet(store)
    await fleet.commit(p0=60, p1=60)

    async def switch_all(partitions: str) -> None:
        for found in await planned(store, 3_000):
            if found.partition in partitions:
                first = found.groups[0]
                assert await switch(store, LAYOUT, found, [(first, await merged(store, first))])

    backend.turns = [turn and partial(switch_all, turn) for turn in turns]  # type: ignore[misc]
    for found in await planned(store):
        backend.turns = []
        for group in found.groups:
            if (made := await maybe_merged(store, group)) is not None:
                await switch(store, LAYOUT, found, made)
    assert await rows(store) == fleet.expected()
    await compact(store)
    assert await rows(store) == fleet.expected()


async def test_a_merge_ends_when_an_original_was_replaced_or_deleted(store: Store, fleet: Fleet) -> None:
    one, other = await planned(store)
    body = await store.get(LAYOUT.output_file("0", 1))
    assert body is not None
    await store.put(LAYOUT.output_file("0", 1), body.body)
    await store.delete(LAYOUT.output_file("1", 0))
    for found in (one, other):
        assert await maybe_merged(store, found.groups[0]) is None
    assert (await store.list(LAYOUT.compacted)).entries == []


async def test_a_missing_compacted_file_is_named(store: Store, fleet: Fleet) -> None:
    await compact(store)
    await fleet.commit(p0=100)
    group = next(found.groups[0] for found in await planned(store) if found.partition == "0")
    assert group.compacted
    await store.delete(group.compacted[0].key)
    with pytest.raises(CorruptObject, match=f"{group.compacted[0].key}: is missing, .* Restore it"):
        await maybe_merged(store, group)


async def test_a_merge_gives_up_when_its_files_were_swept(store: Store, fleet: Fleet) -> None:
    await compact(store)
    await fleet.commit(p0=100)
    group = next(found.groups[0] for found in await planned(store) if found.partition == "0")
    await compact(store)
    assert await sweep(store, LAYOUT, "0", keep=0, kept=KeptFiles())
    assert await maybe_merged(store, group) is None


async def test_the_files_of_a_group_are_not_held_while_others_are_rewritten(store: Store, fleet: Fleet) -> None:
    few, _ = await planned(store)
    await fleet.commit(p0=500)
    many, _ = await planned(store)
    assert many.groups[0].files > 5 * few.groups[0].files
    assert len(pickle.dumps(many)) < len(pickle.dumps(few)) + 100


@pytest.mark.slow
async def test_readers_find_each_row_once_during_commits_and_compactions(store: Store, fleet: Fleet) -> None:
    settings: dict[str, Any] = {**QUICK, "poll_interval": 0.01}
    host = Processor(Numbers, name="numbers", source=fleet.stream, container=store, host="a", **settings)
    switched = [0, 0]
    reads = 0

    async def keep_compacting(which: int, target_size: int) -> None:
        while True:
            switched[which] += len(await compact(store, target_size))
            await delete_originals(store)
            for partition in ("0", "1"):
                await sweep(store, LAYOUT, partition, keep=0, kept=KeptFiles())
            await anyio.sleep(0)

    async with host, anyio.create_task_group() as tasks:
        tasks.start_soon(keep_compacting, 0, 9_000)
        tasks.start_soon(keep_compacting, 1, 60_000)
        with anyio.fail_after(120):
            while min(switched) < 4 or reads < 20:
                committed = await rows(store)
                if fleet.expected() == committed:
                    fleet.stream.add("0", 50)
                    fleet.stream.add("1", 30)
                assert committed <= fleet.expected()
                assert committed <= await rows(store)
                reads += 1
        tasks.cancel_scope.cancel()
    assert await rows(store) == fleet.expected()


class Mortal(Backend):
    """A store whose user dies: from the `lives`-th write or deletion on, nothing reaches it."""

    def __init__(self, below: Backend, lives: int) -> None:
        self.url, self._below, self._lives = below.url, below, lives

    def _live(self) -> None:
        self._lives -= 1
        if self._lives < 0:
            raise Death

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._below.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        self._live()
        return await self._below.put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        self._live()
        return await self._below.put_if_absent(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        self._live()
        return await self._below.put_if_match(key, body, tag)

    list = property(lambda self: self._below.list)

    async def delete(self, key: str) -> None:
        self._live()
        await self._below.delete(key)


class Death(Exception):
    pass


async def test_killed_after_any_write_and_run_again_rows_are_always_the_same(store: Store, fleet: Fleet) -> None:
    async def work(store: Store) -> None:
        await compact(store, 20_000)
        await delete_originals(store)
        for partition in await partitions_with_state(store, LAYOUT):
            await sweep(store, LAYOUT, partition, keep=0, kept=KeptFiles())

    deaths = 0
    for _ in range(3):
        lives = 0
        while True:
            try:
                await work(Store(Mortal(store.backend, lives)))
            except Death:
                deaths += 1
                lives += 1
                assert await rows(store) == fleet.expected()
            else:
                break
        assert await rows(store) == fleet.expected()
        await fleet.commit(p0=60, p1=40)
    assert deaths > 10


# Spark's side, without Spark


def asked(path: object = "anywhere", **options: str) -> ReadOptions:
    return parse_read_options({"path": str(path), "name": "numbers", **options})


async def test_limits_cut_batches_in_compacted_files_as_they_did_before(store: Store, fleet: Fleet) -> None:
    async def batches(request: ReadOptions) -> list[int]:
        at = await initial_numbers(request, store)
        sizes: list[int] = []
        while True:
            end, _ = await latest_numbers(request, store, at, limited=True, target=None)
            if end == at:
                return sizes
            sizes.append(sum(end.values()) - sum(at.values()))
            at = end

    requests = [asked(maxFilesPerTrigger="3"), asked(maxRowsPerTrigger="20"), asked(maxRowsPerTrigger="1")]
    before = [sorted(await batches(request)) for request in requests]
    await compact(store)
    await delete_originals(store)
    assert [sorted(await batches(request)) for request in requests] == before


async def test_a_start_sequence_and_counts_hold_in_compacted_files(store: Store, fleet: Fleet) -> None:
    request = asked(startSequence='{"0": 25, "1": 29}')
    await compact(store)
    assert await initial_numbers(request, store) == {"0": 0, "1": 2}
    counts = [await request.dataset.rows(store, "0", first, stop) for first, stop in ((0, 5), (1, 3), (2, 5), (4, 5))]
    assert counts == [45, 18, 27, 9]


async def test_a_target_within_a_file_that_was_compacted_since_is_not_passed(store: Store, fleet: Fleet) -> None:
    await compact(store)
    end, _ = await latest_numbers(asked(), store, {"0": 1}, limited=False, target={"0": 3, "1": 1})
    assert end == {"0": 3, "1": 1}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def read(request: ReadOptions, parts: list[list[object]], schema: object) -> Iterator[tuple[str, int]]:
    for part in parts:
        for batch in read_spans(request, part, schema):  # type: ignore[arg-type]
            yield from ((row["_partition"], row["_sequence"]) for row in batch.to_pylist())


async def test_tasks_read_the_planned_rows_although_files_have_moved(folder: str) -> None:
    fleet = Fleet(folder)
    await fleet.commit(p0=50, p1=30)
    request = asked(folder)
    expected = sorted((partition, sequence) for partition, sequence, _ in fleet.expected())
    async with open_store(folder) as store:
        schema = await request.dataset.schema(store)
        plans = {"originals": await plan_batch(request, store)}
        late = await store.get(LAYOUT.output_file("0", 0))
        assert late is not None
        assert len(await compact(store, 2 * late.size + 500)) == 3
        plans["small files"] = await plan_batch(request, store)
        plans["from the middle"] = await plan_micro_batch(request, store, {"0": 1, "1": 2}, {"0": 4, "1": 3})
        await delete_originals(store)
        await store.create(LAYOUT.output_file("0", 0), late.body[:-1] + b"!")  # a sleeper's, void
        await compact(store)
        for partition in ("0", "1"):
            await sweep(store, LAYOUT, partition, keep=0, kept=KeptFiles())
        plans["one file"] = await plan_batch(request, store)
        keys = [{file.key for span in plans[name] for file in span.files} for name in ("small files", "one file")]
        assert len(keys[0] - keys[1]) == 2
    for name, spans in plans.items():
        for tasks in (1, 5):
            found = sorted(read(request, split_into_tasks(spans, tasks), schema))  # type: ignore[arg-type]
            if name == "from the middle":
                assert found == [
                    row for row in expected if (10 <= row[1] < 40 if row[0] == "0" else 20 <= row[1] < 30)
                ], name
            else:
                assert found == expected, name


async def test_a_listing_that_sees_the_switch_and_the_deletion_happen_looks_again(store: Store, fleet: Fleet) -> None:
    where = OutputFiles(LAYOUT)
    await where.look(store)
    await compact(store)
    await delete_originals(store)
    files = await where.files(store, {"0": 1, "1": 0})
    assert [(file.number, file.next, file.compacted) for file in files["0"]] == [(1, 4, True), (4, 5, False)]


async def test_a_damaged_compacted_file_is_named(store: Store, fleet: Fleet) -> None:
    made = (await compact(store))[0]
    key = LAYOUT.compacted_file("0", 0, made.put_id)
    await store.put(key, b"PAR1 nothing PAR1")
    with pytest.raises(CorruptObject, match=key):
        await rows(store)


async def test_an_added_struct_is_null_in_older_files(store: Store, fleet: Fleet) -> None:
    class Structured(Numbers):
        output_schema = "n long, s struct<x: int NOT NULL, deep: struct<y: array<struct<z: string NOT NULL>>>>"

        def row(self, n: int) -> dict[str, Any]:
            return super().row(n) | {"s": {"x": n, "deep": None}}

    await fleet.commit(Structured, p0=20)
    assert await compact(store)
    found: dict[int, Any] = {}
    async for piece in all_slices(store, LAYOUT, ["0"]):
        async for batch in read_rows(store, piece):
            there = batch.schema.names
            found |= {row["n"]: row["s"] if "s" in there else "no column" for row in batch.to_pylist()}
    assert [found[0], found[49], found[50]] == [None, None, {"x": 50, "deep": None}]


async def test_a_batch_of_a_compacted_file_is_at_most_a_row_group(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(Numbers):
        output_schema = "n long, text string"

        def row(self, n: int) -> dict[str, Any]:
            return super().row(n) | {"text": "x" * 10_000}

    monkeypatch.setattr("actorproc.output.file_merger._GROUP_BYTES", 200_000)
    await Fleet(store).commit(Large, p0=200)
    (made,) = await compact(store)
    assert made.size < 20_000
    sizes = [
        batch.nbytes async for piece in all_slices(store, LAYOUT, ["0"]) async for batch in read_rows(store, piece)
    ]
    assert sum(sizes) > 1_800_000
    assert max(sizes) < 400_000


async def test_with_a_table_in_the_output_compacted_files_move_into_its_folder(store: Store, fleet: Fleet) -> None:
    """Those of before are moved, also those that are large enough; all rows stay readable, and unused files go."""
    before = await compact(store)
    await fleet.commit(p0=5)
    await register_sink(store, LAYOUT, "table", "delta", {}, table="within")
    made = await compact(store, target_size=1)
    assert len(made) == len(before) == 2
    assert all(found.within for found in made)
    assert len((await store.list(LAYOUT.compacted_within)).entries) == 2
    rows = [row async for piece in all_slices(store, LAYOUT, ["0", "1"]) async for row in read_rows(store, piece)]
    assert sum(batch.num_rows for batch in rows) == len(fleet.expected())
    swept = [await sweep(store, LAYOUT, partition, keep=0, kept=KeptFiles()) for partition in ("0", "1")]
    gone = [entry.key for entries in swept for entry in entries]
    assert {key.removeprefix(LAYOUT.compacted)[:11] for key in gone} == {"partition=0", "partition=1"}
    assert not await compact(store, target_size=1)


async def test_an_earlier_release_refuses_a_boundary_whose_files_it_does_not_find(store: Store, fleet: Fleet) -> None:
    await compact(store)
    assert (await read_boundary(store, LAYOUT.boundary("0"))).format_version == 1
    await register_sink(store, LAYOUT, "table", "delta", {}, table="within")
    await compact(store)
    assert (await read_boundary(store, LAYOUT.boundary("0"))).format_version == 2
