"""Trimming an output: deleted files, held files, and interruptions."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from actorproc import Processor
from actorproc.admin.retained import RetainedDataset, RetainedOutput
from actorproc.admin.trim import Trim, plan_trim, trim
from actorproc.errors import UsageError
from actorproc.output.chain import OutputChain
from actorproc.output.letter import dead_letters
from actorproc.output.row_reader import all_slices, read_rows
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Reader, decide, read_registry, register, remove
from actorproc.storage.backend import Entry, Listing
from actorproc.storage.names import LARGE_LETTERS, number_of
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.admin.conftest import HOUR, LAYOUT, SETTINGS, Later, Place
from tests.spark.committing import QUICK, Fleet, Numbers

OUTPUT = LAYOUT.output_dir("0")
LARGE = LAYOUT.attached_dir(LARGE_LETTERS, "0")


async def rows(store: Store, partitions: Sequence[str] = ("0",)) -> list[int]:
    pieces = all_slices(store, LAYOUT, partitions)
    return [n async for piece in pieces async for batch in read_rows(store, piece) for n in batch["n"].to_pylist()]


async def trim_now(kept: RetainedDataset) -> Trim:
    return await trim(kept, SETTINGS)


async def hold(kept: RetainedDataset, name: str, **positions: int) -> None:
    await register(
        kept.store, kept.readers, Reader.at(name, {p.removeprefix("p"): number for p, number in positions.items()})
    )


async def test_without_readers_all_old_files_but_the_newest_go(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    await fleet.commit(p0=50, p1=10)
    place.wait(2 * HOUR)
    planned = await plan_trim(kept, SETTINGS)
    assert [(found.partition, found.upto, found.going.files) for found in planned.partitions] == [
        ("0", 4, 4),
        ("1", 0, 0),
    ]
    assert await place.numbers(OUTPUT) == [0, 1, 2, 3, 4], "a plan changes nothing"
    await trim_now(kept)
    assert await place.numbers(OUTPUT) == [4]
    assert (await read_boundary(place.store, LAYOUT.boundary("0"))).lowest == 4
    assert (await trim_now(kept)).files == 0
    await fleet.commit(p0=20)
    assert await rows(place.store) == [n for n in range(40, 70) if n % 10 != 7]


async def test_files_younger_than_an_hour_stay(place: Place, fleet: Fleet, kept: RetainedOutput) -> None:
    await fleet.commit(p0=30)
    place.wait(1.5 * HOUR)
    await fleet.commit(p0=30)
    [partition] = (await plan_trim(kept, SETTINGS)).partitions
    assert (partition.upto, partition.hold) == (3, (3, "younger than 1 h"))
    [partition] = (await plan_trim(kept, SETTINGS, older_than=2 * HOUR)).partitions
    assert (partition.upto, partition.going.files) == (0, 0)


async def test_less_than_an_hour_is_refused(kept: RetainedOutput) -> None:
    with pytest.raises(UsageError, match=r"older_than = 3599 s: allowed are 3600 s \(1h\) and more"):
        await plan_trim(kept, SETTINGS, older_than=3599)


async def test_the_slowest_reader_holds_and_is_named(place: Place, fleet: Fleet, kept: RetainedOutput) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await hold(kept, "fast", p0=4)
    await hold(kept, "slow", p0=2)
    trimmed = await trim_now(kept)
    assert trimmed.partitions[0].hold == (2, "reader slow reads 2 next")
    assert await place.numbers(OUTPUT) == [2, 3, 4]
    await hold(kept, "slow", p0=3)
    await trim_now(kept)
    assert await place.numbers(OUTPUT) == [3, 4]
    await remove(kept.store, kept.readers, "slow")
    await trim_now(kept)
    assert await place.numbers(OUTPUT) == [4]


async def test_a_reader_without_a_known_position_holds_everything(
    place: Place, fleet: Fleet, kept: RetainedOutput, tmp_path: Path
) -> None:
    await fleet.commit(p0=50, p1=50)
    place.wait(2 * HOUR)
    await hold(kept, "half", p0=5)
    trimmed = await trim_now(kept)
    assert [found.hold.why for found in trimmed.partitions] == ["the newest file stays", "reader half has not begun"]
    assert await place.numbers(LAYOUT.output_dir("1")) == [0, 1, 2, 3, 4]
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/7").write_text("v1\n{}")
    await register(kept.store, kept.readers, Reader.spark("lost", str(tmp_path)))
    await remove(kept.store, kept.readers, "half")
    trimmed = await trim_now(kept)
    assert {found.hold.why for found in trimmed.partitions} == {"the position of reader lost cannot be read"}
    assert trimmed.readers[0].error is not None
    assert "offsets/7: is missing" in trimmed.readers[0].error
    assert trimmed.files == 0


async def test_a_late_reader_is_refused_with_partition_and_number(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await trim_now(kept)
    with pytest.raises(UsageError, match=r"'late' cannot be registered.*partition 0: 3, trimmed below 4"):
        await hold(kept, "late", p0=3)
    assert not (await read_registry(place.store, kept.readers)).readers
    await hold(kept, "late", p0=4)


async def test_a_reader_that_registers_while_a_trim_runs_is_heard(place: Place, fleet: Fleet) -> None:
    class Interrupted(RetainedOutput):
        """A reader registers just after the readers were asked."""

        async def newest(self, partition: str) -> int:
            await hold(self, "new", p0=1)
            return await super().newest(partition)

    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    kept = Interrupted(place.store, LAYOUT)
    planned = await plan_trim(kept, SETTINGS)
    assert planned.partitions[0].upto == 4
    assert not await decide(place.store, kept.readers, planned.seen, {"0": 4})
    await remove(place.store, kept.readers, "new")
    await trim_now(kept)
    assert await place.numbers(OUTPUT) == [1, 2, 3, 4]


class Killed(Exception):
    """The process has died."""


class Dying(MemoryStore):
    """Dies at its n-th change, before or after it is made."""

    def __init__(self, clock: Later) -> None:
        super().__init__(clock=clock)
        self.left: float = float("inf")
        self.after = False

    async def put_if_absent(self, key: str, body: bytes) -> str:
        self._count(before=True)
        tag = await super().put_if_absent(key, body)
        self._count(before=False)
        return tag

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        self._count(before=True)
        tag = await super().put_if_match(key, body, tag)
        self._count(before=False)
        return tag

    async def delete(self, key: str) -> None:
        self._count(before=True)
        await super().delete(key)
        self._count(before=False)

    def _count(self, *, before: bool) -> None:
        if before:
            self.left -= 1
        if self.left < 0 and before != self.after:
            raise Killed


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
async def test_a_trim_killed_at_any_change_is_completed_by_the_next(after: bool) -> None:
    steps = 0
    while True:
        clock = Later()
        backend = Dying(clock)
        store = Store(backend, clock=clock)
        await Fleet(store).commit(p0=50, p1=40)
        kept, place = RetainedOutput(store, LAYOUT), Place(store, clock, None)
        place.wait(2 * HOUR)
        await hold(kept, "reader", p0=3, p1=9)
        backend.left, backend.after = steps, after
        try:
            await trim_now(kept)
            break
        except Killed:
            backend.left = float("inf")
        for partition, read in (("0", 3), ("1", 3)):
            lowest = (await read_boundary(store, LAYOUT.boundary(partition))).lowest
            assert lowest <= read
            assert set(range(lowest, 4)) <= set(await place.numbers(LAYOUT.output_dir(partition)))
        await trim_now(kept)
        assert await place.numbers(OUTPUT) == [3, 4]
        assert await place.numbers(LAYOUT.output_dir("1")) == [3]
        steps += 1
    assert steps == 10, "one decision, two boundaries, six files, one entry of the audit"


async def test_two_trims_at_once_do_no_harm(place: Place, fleet: Fleet, kept: RetainedOutput) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await hold(kept, "reader", p0=3)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(trim_now, kept)
    assert await place.numbers(OUTPUT) == [3, 4]


async def test_a_late_file_below_the_boundary_is_void_and_swept(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    await fleet.commit(p0=50)
    late = await place.store.get(LAYOUT.output_file("0", 1))
    assert late is not None
    place.wait(2 * HOUR)
    await trim_now(kept)
    expected = await rows(place.store)
    await place.store.create(LAYOUT.output_file("0", 1), late.body)
    assert await rows(place.store) == expected
    going = (await trim_now(kept)).partitions[0].going
    assert (going.files, going.first, going.last) == (1, 1, 1), "young as it is"
    assert await place.numbers(OUTPUT) == [4]


async def test_large_letters_go_with_their_commit_and_published_ones_stay(place: Place, kept: RetainedOutput) -> None:
    fleet = Fleet(place.store, {"dead_letter_limit": 1.0})
    fleet.stream.add("0", 1)
    fleet.stream.append("0", [os.urandom(5 * 2**20).hex().encode()])  # no number, and too large for a footer
    await fleet.commit(p0=0)
    await fleet.commit(p0=10)
    await fleet.commit(p0=10)
    assert len((await place.store.list(LARGE)).entries) == 1
    place.wait(2 * HOUR)
    await trim_now(kept)
    assert (await place.store.list(LARGE)).entries == []
    assert 1 in [letter["sequence"] async for letter in dead_letters(place.store, LAYOUT)]


async def test_large_letters_without_a_commit_go_with_their_number(place: Place, kept: RetainedOutput) -> None:
    """A host died between the two, or another was faster; or it wakes up now, and puts them below the boundary."""
    fleet = Fleet(place.store)
    await fleet.commit(p0=40)
    for number in (0, 3):
        await place.store.put(LAYOUT.attached(LARGE_LETTERS, "0", number, "dead"), b"giant")
    place.wait(2 * HOUR)
    await trim_now(kept)
    left = [entry.key for entry in (await place.store.list(LARGE)).entries]
    assert left == [LAYOUT.attached(LARGE_LETTERS, "0", 3, "dead")]
    assert await place.numbers(OUTPUT) == [3]
    await place.store.put(LAYOUT.attached(LARGE_LETTERS, "0", 0, "asleep"), b"giant")
    await fleet.commit(p0=10)
    place.wait(2 * HOUR)
    await trim_now(kept)
    assert (await place.store.list(LARGE)).entries == []


async def test_letters_beside_a_commit_that_stays_stay(place: Place, kept: RetainedOutput) -> None:
    fleet = Fleet(place.store, {"dead_letter_limit": 1.0})
    fleet.stream.add("0", 30)
    fleet.stream.append("0", [os.urandom(5 * 2**20).hex().encode()])  # no number, and too large for a footer
    await fleet.commit(p0=0)
    place.wait(2 * HOUR)
    await trim_now(kept)
    [number] = await place.numbers(OUTPUT)
    assert await OutputChain(place.store, LAYOUT, "0").letters(number)
    assert len((await place.store.list(LARGE)).entries) == 1


class Many(MemoryStore):
    """A folder with a great many files, made up as they are listed. Each is two hours old."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.gone = 0

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        if prefix != OUTPUT:
            return await super().list(prefix, after, limit)
        first = max(number_of(after) + 1 if after > prefix else 0, self.gone)
        stop = min(self.count, first + (limit or self.count))
        now = self._clock.wall()
        return Listing(
            [Entry(LAYOUT.output_file("0", n), f"{n:032x}", 100, now - 2 * HOUR - n) for n in range(first, stop)], now
        )

    async def delete(self, key: str) -> None:
        self.gone += 1


class AllOld(RetainedOutput):
    async def partitions(self) -> Sequence[str]:
        return ["0"]

    async def newest(self, partition: str) -> int:
        return 10**9


@pytest.mark.slow
async def test_a_plan_lists_large_pages_in_constant_memory() -> None:
    count = 60_000
    store = Store(Many(count))
    tracemalloc.start()
    try:
        planned = await plan_trim(AllOld(store, LAYOUT), SETTINGS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (planned.files, planned.size) == (count - 1, 100 * (count - 1))
    assert store.requests["list"] <= 10, "a folder reads all its names for each"
    assert peak < 200 * count, f"{peak / count:.0f} bytes a file"


async def test_each_deleted_file_is_reported() -> None:
    backend = Many(2500)
    deleted: list[int] = []
    planned = await trim(
        AllOld(Store(backend), LAYOUT), SETTINGS, deleted=lambda entry: deleted.append(number_of(entry.key))
    )
    assert sorted(deleted) == list(range(2499))
    assert (planned.files, backend.gone) == (2499, 2499)


async def test_a_processor_and_its_reader_continue_during_trims(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    """Commit, read and trim in turn: the reader gets each row once, and the files that it has read are deleted."""
    seen: list[int] = []
    position = 0
    await fleet.commit(p0=30)
    processor = Processor(Numbers, name="numbers", source=fleet.stream, container=place.store, host="b", **QUICK)
    async with processor:
        await hold(kept, "reader", p0=0)
        for turn in range(1, 5):
            fleet.stream.add("0", 50)
            with anyio.fail_after(60):
                while (end := await kept.end("0")) < 3 + 5 * turn:
                    await anyio.sleep(0.01)
            async for piece in all_slices(place.store, LAYOUT, ["0"]):
                if position <= number_of(piece.file.key) < end:
                    seen += [n async for batch in read_rows(place.store, piece) for n in batch["n"].to_pylist()]
            position = end
            await hold(kept, "reader", p0=position)
            place.wait(2 * HOUR)
            await trim_now(kept)
    assert (await read_boundary(place.store, LAYOUT.boundary("0"))).lowest > 10
    assert seen == [n for n in range(230) if n % 10 != 7]
