"""A compaction that is killed again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from actorproc.output.compaction import sweep
from actorproc.retention.boundary import read_boundary
from actorproc.retention.kept_files import KeptFiles
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.output.test_compaction import compact, rows
from tests.spark.committing import Fleet, delete_originals

ROOT = Path(__file__).parents[2]
LAYOUT = ProcessorLayout("numbers")
PARTITIONS = ("0", "1", "2")
KILLS = 8


@pytest.mark.long
async def test_a_compaction_killed_at_random_leaves_each_row_in_one_place(tmp_path: Path) -> None:
    container = str(tmp_path / "state")
    fleet, dice = Fleet(container), random.Random(5)
    leftovers = 0
    async with open_store(container) as store:
        for _ in range(KILLS):
            await fleet.commit(p0=150, p1=120, p2=90)
            command = [sys.executable, "-m", "tests.admin.compacting", container]
            child = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            before = len((await store.list(LAYOUT.compacted)).entries)
            try:
                with child.stdout as said:
                    assert next(line for line in said if line.startswith("began") and line != "began 0\n")
                    # From before the first file is written until readers were switched to some.
                    written = dice.randint(0, 6)
                    with anyio.fail_after(60):
                        while len((await store.list(LAYOUT.compacted)).entries) < before + written:
                            await anyio.sleep(0.001)
            finally:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            assert await rows(store) == fleet.expected()
            boundaries = [await read_boundary(store, LAYOUT.boundary(partition)) for partition in PARTITIONS]
            named = sum(len(boundary.ranges) for boundary in boundaries)
            leftovers += len((await store.list(LAYOUT.compacted)).entries) - named
            await delete_originals(store, PARTITIONS)
            assert await rows(store) == fleet.expected()
        await compact(store)
        for partition in PARTITIONS:
            await sweep(store, LAYOUT, partition, keep=0, kept=KeptFiles())
        boundaries = [await read_boundary(store, LAYOUT.boundary(partition)) for partition in PARTITIONS]
        assert len((await store.list(LAYOUT.compacted)).entries) == sum(len(found.ranges) for found in boundaries)
        assert await rows(store) == fleet.expected()
    assert leftovers > 0
