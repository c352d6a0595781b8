"""The summary of `actorproc trim`."""

from __future__ import annotations

from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import plan_trim
from actorproc.cli.trim import _document
from tests.admin.conftest import HOUR, SETTINGS, Place
from tests.admin.test_trim_compacted import place as place
from tests.output.test_compaction import compact
from tests.spark.committing import Fleet


async def test_numbers_cover_originals_and_compacted_files(place: Place, fleet: Fleet, kept: RetainedOutput) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await compact(place.store)
    await fleet.commit(p0=30)
    place.wait(2 * HOUR)
    [planned] = (await plan_trim(kept, SETTINGS)).partitions
    shown = _document(planned)
    assert (shown["files"], shown["first"], shown["last"]) == (8, 0, 6), "the newest of 0 to 7 stays"
