"""Reading and writing through a Spark Connect server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster import connect_server
from tests.spark.committing import Fleet
from tests.spark.conftest import ROOT


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_spark_connect_reads_all_datasets_and_writes_logs(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect: install the extra 'connect'")
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=40, p1=30)
    with connect_server(tmp_path / "server") as remote:
        client = [sys.executable, "-m", "tests.spark.over_connect", remote, str(tmp_path / "state"), str(tmp_path)]
        done = subprocess.run(client, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {tuple(row) for row in found["rows"]} == fleet.expected()
    assert found["one column"] == sorted(n for _, _, n in fleet.expected())
    assert found["of a path from here"] == len(fleet.expected())
    assert found["letters"] == 7
    written = sorted([partition, n] for partition, _, n in fleet.expected())
    assert sorted(found["batch"]) == sorted(found["stream"]) == written
