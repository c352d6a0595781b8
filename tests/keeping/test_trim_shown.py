"""What `actorproc trim` tells of what goes."""

from __future__ import annotations

from actorproc.cli.trim import _document
from actorproc.keeping.kept import KeptOutput
from actorproc.keeping.trim import plan_trim
from tests.keeping.conftest import HOUR, SETTINGS, Place
from tests.keeping.test_compacted import place as place
from tests.spark.committing import Fleet
from tests.test_compaction import compact


async def test_the_numbers_are_the_lowest_and_the_highest_whichever_of_the_files_are_compacted(
    place: Place, fleet: Fleet, kept: KeptOutput
) -> None:
    await fleet.commit(p0=50)
    place.wait(2 * HOUR)
    await compact(place.store)
    await fleet.commit(p0=30)
    place.wait(2 * HOUR)
    [planned] = (await plan_trim(kept, SETTINGS)).partitions
    shown = _document(planned)
    assert (shown["files"], shown["first"], shown["last"]) == (8, 0, 6), "the newest of 0 to 7 stays"
