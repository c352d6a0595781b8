"""Commands whose stdout or stderr is closed, full, or a pipe without a reader."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.cli.conftest import APP, QUICK_OPTIONS, Run, events

STOPS = """
from actorproc import Decision

class Stops(Delays):
    def on_error(self, error, records, attempt):
        return Decision.STOP

class GivesUp(Delays):
    async def process(self, batch, ctx):
        for record in batch:
            ctx.dead_letter(record, "not today")
"""
SERVE = ["serve", "--source", "events", "--container", "state", *QUICK_OPTIONS, "--set", "restart_backoff=10ms"]
FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights_app.py").write_text(APP + STOPS)
    (tmp_path / "flights.jsonl").write_bytes(b"\n".join(events(40)) + b"\n")
    assert run("produce", "--log", "events", "--partitions", "2", "flights.jsonl").exit_code == 0
    return tmp_path


@contextmanager
def unread() -> Iterator[int]:
    """A pipe whose reader has closed it."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def ended(
    *arguments: str, stdout: int | None = subprocess.PIPE, stderr: int | None = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actorproc", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=120, check=False)


def shell(command: str) -> subprocess.CompletedProcess[str]:
    line = command.replace("actorproc", f"{sys.executable} -m actorproc", 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_run_whose_log_nobody_reads_does_all_its_work(workers: list[str]) -> None:
    with unread() as stderr:
        done = ended(*SERVE, "flights_app:Delays", "--until-end", *workers, stderr=stderr)
    assert done.returncode == 0
    assert sum(map(int, re.findall(r" on \S+: (\d+) records handled", done.stdout))) == 40


def test_produce_fails_with_1_if_nobody_reads_stderr(folder: Path) -> None:
    (folder / "events" / "partition=0").rename(folder / "away")
    (folder / "events" / "partition=0").write_text("in the way")
    with unread() as stderr:
        assert ended("produce", "--log", "events", "flights.jsonl", stderr=stderr).returncode == 1


def test_a_host_with_an_unread_log_stops_on_a_signal() -> None:
    command = [sys.executable, "-m", "actorproc", *SERVE, "flights_app:Delays"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert any(orjson.loads(line)["event"] == "partition.opened" for line in process.stderr)
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_failed_run_exits_with_1_although_nobody_reads_stdout() -> None:
    with unread() as stdout:
        failed = ended(*SERVE, "flights_app:Stops", "--until-end", stdout=stdout)
    assert failed.returncode == 1
    told = failed.stderr[failed.stderr.index("\nerror: ") :]
    assert "on_error returned Decision.STOP" in told


def test_finished_workers_exit_with_0_although_nobody_reads_stdout() -> None:
    with unread() as stdout:
        assert ended(*SERVE, "flights_app:Delays", "--until-end", "--workers", "2", stdout=stdout).returncode == 0


@pytest.mark.parametrize("command", ["output", "output --json", "dead-letters list", "status", "--version", "--help"])
def test_a_reader_that_has_seen_enough_is_no_failure(command: str, place: list[object]) -> None:
    options = [] if command.startswith("--") else map(str, place)
    with unread() as stdout:
        printed = ended(*command.split(), *options, stdout=stdout)
    assert printed.returncode == 0
    assert printed.stderr == ""


@pytest.mark.slow
def test_partial_work_exits_with_1_although_nobody_reads_stdout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(*SERVE, "flights_app:GivesUp", "--until-end").returncode == 0
    shutil.rmtree(folder / "state" / "GivesUp" / "checkpoints")  # none has passed the letters
    for unbuffered in ("", "1"):
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        with unread() as stdout:
            purged = ended(
                "dead-letters", "purge", "--name", "GivesUp", "--container", "state", "--yes", stdout=stdout
            )  # fmt: skip
        assert (purged.returncode, purged.stderr) == (1, "")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("trim --log events", ""), ("trim --log events --json", "1"), ("--version", ""), ("serve --help", "1")],
)
def test_a_full_disk_behind_stdout_is_one_line(command: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    printed = shell(f"actorproc {command} > /dev/full")
    assert printed.returncode == 1
    assert printed.stderr == "error: stdout cannot be written: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.slow
def test_records_are_appended_although_stdout_fails() -> None:
    assert shell("actorproc produce --log events flights.jsonl > /dev/full").returncode == 0
    assert shell("actorproc produce --log events flights.jsonl >&-").returncode == 0


@pytest.mark.slow
def test_a_command_whose_stdout_or_stderr_is_closed_works() -> None:
    assert shell("actorproc trim --log events >&-").returncode == 0
    assert shell("actorproc trim --log events 2>&-").returncode == 0
    assert shell("actorproc trim --log nowhere 2>&-").returncode == 2
