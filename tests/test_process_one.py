"""SIGTERM in the first seconds of a container, where the command is process 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from actorproc.runtime.process_one import _code

ROOT = Path(__file__).parents[1]
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")
ACTORPROC = (sys.executable, "-m", "actorproc")
SERVE = ("serve", "app:Keeps", "--source", "events", "--container", "state")

APP = """
from actorproc import PartitionHandler, Processor
class Keeps(PartitionHandler):
    output_schema = "n long"
    async def process(self, batch, ctx):
        pass
if __name__ == "__main__":
    import anyio
    anyio.run(lambda: Processor(Keeps, source="events", container="state").run(signals=True))
"""


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here, which makes a process 1")
    if done.returncode:
        pytest.skip(f"no process 1 can be made here: {done.stderr.strip()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [*ACTORPROC, "produce", "--log", "events", "--partitions", "1", "/dev/null"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclass
class ProcessOne:
    """`pid`: as this process sees it."""

    outer: subprocess.Popen[str]
    pid: int

    def terminate(self) -> tuple[int, float]:
        """Send SIGTERM. The exit code, and the seconds until the end."""
        began = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        return self.outer.wait(60), time.monotonic() - began

    def obeys(self) -> bool:
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def has_loaded(self, library: str) -> bool:
        return library in Path(f"/proc/{self.pid}/maps").read_text()


@contextmanager
def process_one(*command: str, cwd: Path) -> Iterator[ProcessOne]:
    outer = subprocess.Popen(
        [*UNSHARE, *command], cwd=cwd, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    try:
        wait_until(lambda: bool(children.read_text().strip()))
        one = ProcessOne(outer, int(children.read_text()))
        wait_until(one.obeys)
        yield one
    finally:
        if outer.poll() is None:
            os.kill(int(children.read_text()), signal.SIGKILL)
        outer.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*ACTORPROC, *SERVE], 0),
        ([*ACTORPROC, "--log-level", "debug", *SERVE, "--workers", "2"], 0),
        ([*ACTORPROC, "dashboard", "--container", "state", "--http", "0"], 0),
        ([*ACTORPROC, "produce", "--log", "events", "-"], 0),
        ([*ACTORPROC, *SERVE, "--until-end"], 128 + signal.SIGTERM),
        ([*ACTORPROC, "produce", "--log", "events", "/dev/null"], 128 + signal.SIGTERM),
        ([*ACTORPROC, "status", "--name", "Keeps", "--container", "state"], 128 + signal.SIGTERM),
        ([sys.executable, "app.py"], 128 + signal.SIGTERM),
    ],
    ids=["serve", "workers", "dashboard", "produce -", "until the end", "produce", "status", "own program"],
)
def test_sigterm_ends_process_one_before_it_has_imported_anything(command: list[str], code: int, folder: Path) -> None:
    with process_one(*command, cwd=folder) as one:
        heavy = one.has_loaded("libarrow.so")
        ended = one.terminate()
    assert not heavy
    assert ended[0] == code
    assert ended[1] < 2


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    "command",
    [[*ACTORPROC, *SERVE], [*ACTORPROC, *SERVE, "--workers", "2"],
     [*ACTORPROC, "dashboard", "--container", "events", "--http", "0"], [*ACTORPROC, "produce", "--log", "events", "-"],
     [sys.executable, "app.py"]],
    ids=["serve", "workers", "dashboard", "produce", "own program"],
)  # fmt: skip
def test_sigterm_at_any_moment_ends_process_one(command: list[str], after: float, folder: Path) -> None:
    with process_one(*command, cwd=folder) as one:
        time.sleep(after)
        code, seconds = one.terminate()
    early = 128 + signal.SIGTERM if command[1] == "app.py" else 0
    assert code in (0, early)
    assert seconds < 20


@pytest.mark.parametrize(
    ("line", "endless"),
    [
        ("serve a:b", True), ("--debug --log-level info serve a:b", True), ("--log-format=json serve a:b", True),
        ("serve a:b --until-end", False), ("status --name serve", False), ("--log-level serve status", False),
        ("produce --log e -", True), ("produce --log e f.csv", False), ("", False), ("--version", False),
    ],
)  # fmt: skip
def test_a_command_without_an_end_is_ended_well_by_a_signal(line: str, endless: bool) -> None:
    code = 0 if endless else 128 + signal.SIGTERM
    assert _code(["/usr/bin/actorproc", *line.split()]) == code
    assert _code(["/app/actorproc/__main__.py", *line.split()]) == code
    assert _code(["app.py", *line.split()]) == 128 + signal.SIGTERM
