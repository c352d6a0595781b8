"""`actorproc compact`."""

from __future__ import annotations

from pathlib import Path

import anyio
import orjson
import pytest

from actorproc.output.compact_output import Compaction
from tests.cli.conftest import Run
from tests.spark.committing import LAYOUT, Fleet

FORM = pytest.mark.parametrize("form", [[], ["--json"]])


def filled(place: Path) -> Fleet:
    fleet = Fleet(str(place))
    anyio.run(lambda: fleet.commit(p0=40, p1=30))
    return fleet


@FORM
def test_compact_rewrites_and_says_so(run: Run, tmp_path: Path, form: list[str]) -> None:
    filled(tmp_path)
    of = ["--name", "numbers", "--container", tmp_path, "--older-than", "0s"]
    result = run("compact", *of, *form)
    assert result.exit_code == 0, result.stderr
    assert len([*(tmp_path / LAYOUT.compacted).rglob("*.parquet")]) == 2
    if form:
        found = orjson.loads(result.stdout)
        assert (found["done"], found["files_before"], found["files_after"], found["rows"]) == (True, 5, 2, 45)
    else:
        assert "5 files, " in result.stdout
        assert "became 2 files" in result.stdout
        assert "nothing to compact" in run("compact", *of).stdout


@FORM
def test_compact_exits_with_1_if_a_partition_was_contested(
    run: Run, state: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    contested: set[str] = set()

    async def compact(**_: object) -> Compaction:
        return Compaction([], 7, 700, contested=contested)

    monkeypatch.setattr("actorproc.cli.compact.compact", compact)
    of = ["--name", "Delays", "--container", state / "state"]
    assert run("compact", *of, *form).exit_code == 0
    contested.add("3")
    result = run("compact", *of, *form)
    assert result.exit_code == 1
    assert result.stdout
    assert "partition 3: another job was rewriting its files; run it again" in result.stderr


@FORM
def test_compact_plans_the_rest_if_a_file_is_missing(run: Run, tmp_path: Path, form: list[str]) -> None:
    filled(tmp_path)
    lost = tmp_path / LAYOUT.output_file("0", 1)
    lost.unlink()
    result = run("compact", "--name", "numbers", "--container", tmp_path, "--older-than", "0s", "--dry-run", *form)
    assert result.exit_code == 1
    assert lost.name in result.stderr
    if form:
        found = {p["partition"]: p["rewritten"] for p in orjson.loads(result.stdout)["partitions"]}
        assert (found["0"], found["1"]) == (0, 2)  # the last one is beyond the checkpoint
    assert "2 files" in result.stdout or form
