"""How many tasks a cluster gets to do right after the session has begun."""

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
def test_a_cluster_that_has_only_just_been_asked_counts_with_all_cores_it_gives(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, cores=2) as master:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "4\n"
