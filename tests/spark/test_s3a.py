"""Spark's own `s3a` on real S3 servers with the small set of JARs: reading, streams and checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import S3Server
from tests.spark.committing import Fleet
from tests.spark.conftest import ROOT
from tests.spark.sink import Sink


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_spark_reads_output_and_keeps_checkpoints_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    url = await s3_server.new_url()
    checkpoints = (await s3_server.new_url()).replace("s3://", "s3a://")
    command = [
        sys.executable,
        "-m",
        "tests.spark.over_s3a",
        url,
        checkpoints,
        str(tmp_path),
    ]  # jars want a Java of their own
    settings = {f"ACTORPROC_{name.upper()}": value for name, value in s3_server.settings.items()}
    fleet = Fleet(url, s3_server.settings)
    for _ in range(2):  # the second goes on where the first ended
        await fleet.commit(p0=30, p1=20)
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert {tuple(row) for row in json.loads(done.stdout)} == fleet.expected()
        assert Sink(tmp_path / "native").rows() == Sink(tmp_path / "source").rows() == fleet.expected()
    assert len(Sink(tmp_path / "native").batches()) == len(Sink(tmp_path / "source").batches()) == 2
