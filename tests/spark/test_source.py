"""The data source by itself: what it says of wrong use. Without Spark."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from actorproc.errors import UsageError
from actorproc.spark.source import ActorprocSource
from tests.spark.committing import Fleet


def lines(error: BaseException) -> list[str]:
    """As Spark's workers put them into its own error; without the test's own call."""
    assert error.__traceback__ is not None
    return "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next)).splitlines()


async def test_wrong_use_is_told_in_four_lines_and_not_with_the_way_through_our_code(tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=5)
    options = {"path": str(tmp_path), "name": "nmbers"}
    with pytest.raises(UsageError) as never_ran:
        ActorprocSource(options).schema()
    with pytest.raises(UsageError) as misspelt:
        ActorprocSource({**options, "startSequense": "3"}).reader(StructType())
    with pytest.raises(UsageError) as missing:
        ActorprocSource({**options, "name": "numbers", "partitions": "7"}).reader(StructType()).partitions()
    for raised in (never_ran, misspelt, missing):
        assert len(lines(raised.value)) == 4
        assert lines(raised.value)[-1].startswith("actorproc.errors.UsageError: ")


def test_a_process_of_sparks_need_not_look_for_garbage_among_what_it_has_imported() -> None:
    lines = ("import gc", "from actorproc.spark.source import ActorprocSource as S", "S({})", "gc.collect()")
    script = "; ".join((*lines, "print(len(gc.get_objects()), gc.get_freeze_count())"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    looked_at, spared = map(int, done.stdout.split())
    assert looked_at < spared / 10
