"""`actorproc checkpoints`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.reading import lines


@pytest.fixture
def own(state: Path, tmp_path: Path) -> list[object]:
    shutil.copytree(state / "state", tmp_path / "state")
    return ["--name", "Delays", "--container", tmp_path / "state"]


def test_a_reset_is_shown_first_and_then_done_undone_and_audited(run: Run, own: list[object]) -> None:
    shown = run("checkpoints", "reset", "--to", "earliest", *own).stdout
    assert "repeats 200 and skips 0 records of 4 partitions. Nothing was changed" in shown
    assert [found["resets"] for found in lines(run("checkpoints", "show", *own, "--json").stdout)] == [0] * 4
    done = run(
        "checkpoints", "reset", "--to", "earliest", *own, "--yes", "--reason", "a wrong rate", "--id", "c", "--json"
    )
    [document] = lines(done.stdout)
    assert (document["done"], sum(one["repeats"] for one in document["partitions"])) == (True, 200)
    found = lines(run("checkpoints", "show", *own, "--json").stdout)
    assert [(one["sequence"], one["latest_resets"][0]["reason"]) for one in found] == [(None, "a wrong rate")] * 4
    assert "repeats 0 and skips 200 records" in run("checkpoints", "undo", *own, "--yes").stdout
    acts = lines(run("audit", *own, "--json").stdout)
    assert [(act["what"], act["arguments"]["to"], act["reason"]) for act in acts] == [
        ("reset", "earliest", "a wrong rate"), ("reset", "undo", ""),
    ]  # fmt: skip


def test_an_impossible_reset_is_refused_with_the_reason(run: Run, own: list[object]) -> None:
    beyond = ["checkpoints", "reset", "--to", "99999", *own, "--partition", "1", "--yes"]
    refused = run(*beyond)
    assert (refused.exit_code, "refused: the newest record is" in refused.stdout) == (1, True)
    [document] = lines(run(*beyond, "--json").stdout)
    assert document["done"] is False
    for arguments, said in [
        (["reset", "--to", "x"], "'earliest', 'latest', a sequence, -N, or a time"),
        (["reset", "--to", "1", "--partition", "9"], "no partition '9'; there are: 0, 1, 2, 3"),
        (["show", "--partition", "9"], "no partition '9'; there are: 0, 1, 2, 3"),
        (["undo"], "there is no reset to undo"),
    ]:
        found = run("checkpoints", *arguments, *own)
        assert (found.exit_code, said in found.stderr) == (2, True)
