"""A stream whose driver is killed continues from its checkpoint. Alone in its file: it starts its own Java."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actorproc.spark import stream_output
from tests.spark.committing import Fleet
from tests.spark.conftest import ROOT
from tests.spark.sink import Sink


@pytest.mark.long
async def test_a_driver_killed_within_a_batch_loses_and_repeats_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    container, checkpoint, out = str(tmp_path / "state"), tmp_path / "checkpoint", tmp_path / "out"
    fleet = Fleet(container)
    await fleet.commit(p0=30, p1=30)
    command = [sys.executable, "-m", "tests.spark.sink", container, str(checkpoint), str(out), "1"]
    killed = subprocess.run(command, cwd=ROOT, start_new_session=True, timeout=200, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-3000:]
    sink = Sink(out)
    before = sink.batches()
    assert len(before) == 1
    assert 0 < len(before[0]) < len(fleet.expected())

    await fleet.commit(p0=20, p2=10)
    spark = request.getfixturevalue("spark")
    sink.run(stream_output(spark, container, "numbers", max_files=3), checkpoint)
    assert sink.rows() == fleet.expected()
    assert sink.batches()[0] == before[0]
