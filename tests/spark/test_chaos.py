"""Exactly once through both halves: hosts and Spark's driver killed at random, short; and proof that the check can
fail.

Longer: `make chaos ARGS="--spark source"`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.table import check_table
from tests.spark.conftest import ROOT

SECONDS = 45


def chaos(folder: Path, *arguments: str, seconds: int = SECONDS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", "--folder", str(folder), "--seconds", str(seconds), *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arguments",
    ["--spark source --back", "--spark native", "--spark source --cluster", "--spark native --cluster"],
)
def test_each_row_is_once_in_the_table_despite_kills(tmp_path: Path, arguments: str) -> None:
    ran = chaos(tmp_path / "run", *arguments.split())
    assert ran.returncode == 0, ran.stdout
    assert "kill" in ran.stdout


# The check can fail


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_checkpoint_that_is_lost_shows(tmp_path: Path) -> None:
    ran = chaos(tmp_path / "run", "--spark", "source", "--plant", "forgetful", seconds=20)
    assert ran.returncode == 1, ran.stdout
    assert "the table lacks" in ran.stdout


def rows(*sequences: int) -> list[dict[str, Any]]:
    return [{"_sequence": sequence, "part": 0, "token": f"t{sequence}"} for sequence in sequences]


def in_table(*sequences: int) -> list[dict[str, Any]]:
    return [{**row, "_partition": "0"} for row in rows(*sequences)]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (in_table(1, 2, 4), None),
        (in_table(4, 2, 1), None),
        (in_table(1, 2), "lacks 1 rows of 3 and has 0 too many"),
        (in_table(1, 2, 2, 4), "lacks 0 rows of 3 and has 1 too many"),
        ([*in_table(1, 2), {**in_table(4)[0], "token": "of another attempt"}], "lacks 1 rows of 3 and has 1 too many"),
        ([*in_table(1, 2), {**in_table(4)[0], "_partition": "1"}], "lacks 1 rows of 3 and has 1 too many"),
    ],
)
def test_a_table_that_differs_from_the_output_is_reported(table: list[dict[str, Any]], told: str | None) -> None:
    found = check_table(table, {"0": rows(1, 2, 4)})
    assert found == [] if told is None else told in found[0]
