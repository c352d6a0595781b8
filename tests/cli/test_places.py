"""Commands with a wrong URL: the error names the data found there."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio

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
    assert "that is a log. Give the log as --source" in result.stderr
    result = run("status", "--name", "Delays", "--container", state / "state" / "Delays")
    assert result.exit_code == 2
    assert f"its container is file://{state}/state" in result.stderr


def test_a_container_or_a_processor_folder_is_refused_as_a_source(run: Run, state: Path, place: list[object]) -> None:
    for source, what in ((state / "state", "is a container, in which processors live (Delays), and no log"),
                         (state / "state" / "Delays", "is the folder of a processor, and no log")):  # fmt: skip
        result = run("status", *place, "--source", source)
        assert result.exit_code == 2
        assert f"file://{source} {what}: give the log, or a processor's output as actorproc+" in result.stderr


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
