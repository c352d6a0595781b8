"""The number of tasks right after a session on a cluster has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster import cluster
from tests.spark.conftest import ROOT

PROGRAM = """
import sys
from actorproc.spark.session import parallelism
from tests.spark.conftest import new_session
session = new_session(sys.argv[1], {"spark.executor.memory": "700m"})
print(parallelism(session))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_new_cluster_counts_all_its_cores(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, cores=2) as master:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "4\n"
