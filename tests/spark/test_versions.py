"""The tests of this folder with the oldest supported PySpark. The suite itself runs the newest."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.spark.conftest import ROOT
from tests.spark.environments import environment, variables

OLDEST = "4.1.4"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_everything_here_holds_on_the_oldest_pyspark() -> None:
    python = environment(OLDEST)
    # Its gateway leaves sockets to the garbage collector.
    forgiving = [f"-Wdefault::{warning}" for warning in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")]
    command = [str(python), "-m", "pytest", "tests/spark", "-q", "--disable-warnings", *forgiving]
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 40
