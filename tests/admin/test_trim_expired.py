"""Readers that have not been seen for `reader_expiration` hold nothing, and a trim removes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import plan_trim, trim
from actorproc.config.settings import Settings
from actorproc.retention.readers import Reader, read_registry, register
from tests.admin.conftest import HOUR, LAYOUT, SETTINGS, Place
from tests.admin.test_spark_checkpoint import offset
from tests.spark.committing import Fleet

EXPIRING = Settings.load(reader_expiration="2h")


async def query(kept: RetainedOutput, folder: Path, age: float) -> None:
    """A Spark query that wrote its first micro-batch, up to file 1, so long ago."""
    files = {"offsets/0": b"v1\n{}\n" + offset(await kept.stream_identity(), p0=1), "commits/0": b"v1\n{}"}
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(body)
        os.utime(path, (time.time() - age,) * 2)
    await register(kept.store, kept.readers, Reader.spark("query", str(folder)))


async def test_an_expired_query_holds_nothing_and_is_removed(
    place: Place, fleet: Fleet, kept: RetainedOutput, tmp_path: Path
) -> None:
    await fleet.commit(p0=50)
    await query(kept, tmp_path / "query", age=3 * HOUR)
    place.wait(2 * HOUR)
    assert (await plan_trim(kept, SETTINGS)).partitions[0].hold.why == "reader query reads 1 next"
    planned = await plan_trim(kept, EXPIRING)
    assert planned.partitions[0].hold.why == "the newest file stays"
    assert list((await read_registry(kept.store, kept.readers)).readers) == ["query"], "a plan changes nothing"
    await trim(kept, EXPIRING)
    assert await place.numbers(LAYOUT.output_dir("0")) == [4]
    assert not (await read_registry(kept.store, kept.readers)).readers


async def test_a_query_that_wrote_lately_holds_its_data(
    place: Place, fleet: Fleet, kept: RetainedOutput, tmp_path: Path
) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await query(kept, tmp_path / "query", age=-HOUR)  # by a clock that is two hours ahead
    trimmed = await trim(kept, EXPIRING)
    assert trimmed.partitions[0].hold.why == "reader query reads 1 next"
    assert list((await read_registry(kept.store, kept.readers)).readers) == ["query"]


async def test_readers_that_are_moved_by_hand_or_have_not_begun_do_not_expire(
    place: Place, fleet: Fleet, kept: RetainedOutput, tmp_path: Path
) -> None:
    await fleet.commit(p0=50)
    await register(kept.store, kept.readers, Reader.at("forever", {"0": 2}))
    await register(kept.store, kept.readers, Reader.spark("new", str(tmp_path)))
    place.wait(200 * HOUR)
    trimmed = await trim(kept, EXPIRING)
    assert [found.expired_after for found in trimmed.readers] == [None, None]
    assert trimmed.files == 0
