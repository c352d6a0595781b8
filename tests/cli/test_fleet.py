"""`actorproc pause`, `resume`, `drain`, `move`, `release` and `audit`."""

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


def test_the_reason_of_an_act_is_shown_while_it_holds(run: Run, own: list[object]) -> None:
    assert run("pause", *own, "--partition", "1", "--reason", "wrong").stderr == "paused: 1 (wrong)\n"
    assert "paused: 1 (wrong)" in run("status", *own).stdout
    [status] = lines(run("status", *own, "--json").stdout)
    assert status["asked"] == "paused: 1 (wrong)"
    run("resume", *own, "--reason", "right again")
    assert run("pause", *own, "--partition", "1").stderr == "paused: 1\n"
    acts = lines(run("audit", *own, "--json").stdout)
    assert [act["reason"] for act in acts] == ["wrong", "right again", ""]


def test_pauses_without_hosts_are_kept_and_audited(run: Run, own: list[object]) -> None:
    assert run("pause", *own, "--partition", "1", "--partition", "2").stderr == "paused: 1, 2\n"
    assert run("resume", *own, "--partition", "1").stderr == "paused: 2\n"
    assert run("pause", *own).stderr == "all partitions are paused\n"
    refused = run("resume", *own, "--partition", "2")
    assert (refused.exit_code, "only be resumed as a whole" in refused.stderr) == (2, True)
    acts = lines(run("audit", *own, "--json").stdout)
    assert [(act["what"], act["arguments"]) for act in acts] == [
        ("pause", {"partitions": "1, 2"}), ("resume", {"partitions": "1"}), ("pause", {}),
    ]  # fmt: skip
    assert "all partitions are paused" in run("audit", *own, "--limit", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "a"], "no host 'a' in the group; there are: none"),
        (["move", "1", "a"], "no host 'a' in the group"),
        (["release"], "give a partition, or --host HOST"),
        (["release", "1"], "is not placed"),
        (["release", "--host", "a"], "is not drained"),
    ],
)
def test_wrong_names_are_refused(run: Run, own: list[object], arguments: list[str], said: str) -> None:
    found = run(*arguments, *own)
    assert found.exit_code == 2
    assert said in found.stderr
