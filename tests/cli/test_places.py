"""Commands with a wrong URL: the error says what was found there."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from actorproc import Producer
from tests.cli.conftest import Run


def test_status_refuses_another_log_than_the_one_that_is_processed(
    run: Run, state: Path, place: list[object], tmp_path: Path
) -> None:
    async def other() -> None:
        async with Producer(str(tmp_path / "other"), partitions=4) as producer:
            await producer.send("1")

    anyio.run(other)
    result = run("status", *place, "--source", tmp_path / "other")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"file://{tmp_path}/other is not file://{state}/events" in result.stderr


def test_an_unknown_processor_lists_the_known_ones(run: Run, state: Path) -> None:
    result = run("status", "--name", "Delay", "--container", state / "state")
    assert result.exit_code == 2
    assert "no processor 'Delay'" in result.stderr
    assert "there are: Delays" in result.stderr
    assert "Traceback" not in result.output


def test_a_log_or_a_processor_folder_is_refused_as_a_container(run: Run, state: Path) -> None:
    result = run("status", "--name", "Delays", "--container", state / "events")
    assert result.exit_code == 2
    assert "that is a log. Give it as the source" in result.stderr
    result = run("status", "--name", "Delays", "--container", state / "state" / "Delays")
    assert result.exit_code == 2
    assert f"its container is file://{state}/state" in result.stderr


def test_a_container_or_a_processor_folder_is_refused_as_a_source(run: Run, state: Path, place: list[object]) -> None:
    for source, what in ((state / "state", "is a container, in which processors live (Delays), and no log"),
                         (state / "state" / "Delays", "is the folder of a processor, and no log")):  # fmt: skip
        result = run("status", *place, "--source", source)
        assert result.exit_code == 2
        assert f"file://{source} {what}: give the log, or a processor's output as actorproc+" in result.stderr


@pytest.mark.parametrize("below", ["output", "output/partition=0", "dead-letters/mine"])
def test_a_folder_inside_a_processor_folder_is_refused_as_a_log(
    run: Run, state: Path, place: list[object], tmp_path: Path, below: str
) -> None:
    folder = state / "state" / "Delays"
    inside = f"file://{folder}/{below} is inside what processor Delays keeps, and no "
    (tmp_path / "link").symlink_to(folder / "output")
    for source, says in ((folder / below, inside), (tmp_path / "link", "/link is inside what processor Delays keeps")):
        result = run("status", *place, "--source", source)
        assert result.exit_code == 2
        assert says in result.stderr
        assert f"log: give the log, or a processor's output as actorproc+file://{folder}\n" in result.stderr
    before = sorted(folder.rglob("*"))
    (tmp_path / "flights.jsonl").write_bytes(b"{}\n")
    for more in ([], ["--partitions", "8"]):
        result = run("produce", "--log", folder / below, *more, tmp_path / "flights.jsonl")
        assert (result.exit_code, result.stdout) == (2, "")
        assert inside in result.stderr
        assert "--partitions 8 FILE" not in result.stderr
    assert "and no place for a log: give it one of its own" in result.stderr
    assert sorted(folder.rglob("*")) == before
    for command in (["trim"], ["readers", "list"]):
        result = run(*command, "--log", folder / below)
        assert f"for a processor's output --name Delays --container file://{state}/state" in result.stderr


def test_a_foreign_group_document_above_a_log_is_ignored(run: Run, tmp_path: Path) -> None:
    (tmp_path / "group.json").write_text('{"members": ["me"]}')
    (tmp_path / "flights.jsonl").write_bytes(b"{}\n")
    assert run("produce", "--log", tmp_path / "a/b", "--partitions", "1", tmp_path / "flights.jsonl").exit_code == 0


def test_processors_are_named_though_somebody_made_a_log_among_them(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    shutil.copy(state / "events" / "log.json", tmp_path / "state")
    result = run("status", "--name", "Delay", "--container", tmp_path / "state")
    assert "there are: Delays" in result.stderr
    assert "that is a log" not in result.stderr


def test_a_container_without_any_processor_says_so(run: Run, tmp_path: Path) -> None:
    result = run("output", "--name", "Delays", "--container", tmp_path / "empty")
    assert result.exit_code == 2
    assert "no processor has ever run there" in result.stderr
