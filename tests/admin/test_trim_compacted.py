"""Trimming a compacted output: originals, compacted files and their readers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import plan_trim, trim
from actorproc.retention.readers import Reader, register
from actorproc.stores import open_store
from tests.admin.conftest import HOUR, LAYOUT, SETTINGS, Later, Place
from tests.output.test_compaction import compact, rows
from tests.spark.committing import Fleet


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A store in memory, so that times in the boundary document are as old as the files."""
    clock = Later()
    async with open_store(f"memory://{tmp_path}", SETTINGS, clock=clock) as store:
        yield Place(store, clock, None)


async def hold(kept: RetainedOutput, number: int) -> None:
    await register(kept.store, kept.readers, Reader.at("reader", {"0": number}))


async def left(place: Place) -> tuple[list[int], list[int]]:
    """Numbers in `output/` and in `compacted/`."""
    return await place.numbers(LAYOUT.output_dir("0")), await place.numbers(LAYOUT.compacted_dir("0"))


async def test_originals_go_an_hour_after_compaction(place: Place, fleet: Fleet, kept: RetainedOutput) -> None:
    await fleet.commit(p0=50)
    await hold(kept, 2)
    place.wait(2 * HOUR)
    await compact(place.store)
    await trim(kept, SETTINGS)
    assert await left(place) == ([2, 3, 4], [0])
    place.wait(HOUR)
    await trim(kept, SETTINGS)
    assert await left(place) == ([4], [0])
    assert await rows(place.store) == {row for row in fleet.expected() if row[1] >= 20}

    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await compact(place.store)  # a compacted file that was trimmed in part is not rewritten
    assert await left(place) == ([4, 5, 6, 7, 8, 9], [0, 4])
    await hold(kept, 6)
    place.wait(HOUR)
    planned = await plan_trim(kept, SETTINGS)
    assert [(found.upto, found.going.files, found.hold.number) for found in planned.partitions] == [(6, 6, 6)]
    await trim(kept, SETTINGS)
    assert await left(place) == ([9], [4])
    assert await rows(place.store) == {row for row in fleet.expected() if row[1] >= 60}
    await hold(kept, 10)
    await trim(kept, SETTINGS)
    assert await left(place) == ([9], [])
    assert (await trim(kept, SETTINGS)).files == 0


async def test_old_rows_without_a_reader_go_right_after_compaction(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await compact(place.store)
    assert await left(place) == ([0, 1, 2, 3, 4], [0])
    await trim(kept, SETTINGS)
    assert await left(place) == ([4], [])


async def test_young_rows_stay_in_originals_and_compacted_files(
    place: Place, fleet: Fleet, kept: RetainedOutput
) -> None:
    await fleet.commit(p0=30)
    place.wait(5 * HOUR)
    await fleet.commit(p0=30)
    await compact(place.store)
    place.wait(2 * HOUR)
    await trim(kept, SETTINGS, older_than=3 * HOUR)
    assert await rows(place.store) == fleet.expected()
    place.wait(2 * HOUR)
    planned = await trim(kept, SETTINGS, older_than=3 * HOUR)
    assert await left(place) == ([5], [])
    assert planned.partitions[0].upto == 5
