"""`actorproc debug`: a dead letter as a test, and under the debugger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Run, actorproc
from tests.cli.reading import lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "debugged.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "debugged", raising=False)
    return tmp_path


@pytest.fixture
def letter(run: Run, place: list[object]) -> str:
    return str(lines(run("dead-letters", "list", *place, "--json").stdout)[0]["id"])


def pytest_on(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_written_test_fails_until_the_handler_is_corrected(
    run: Run, place: list[object], folder: Path, letter: str
) -> None:
    written = run("debug", letter, "debugged:Delays", *place, "--no-run", "--file", "test_it.py")
    assert written.stdout == "wrote test_it.py\n", written.output
    failed = pytest_on(folder)
    assert failed.returncode == 1
    assert "KeyError: 'delay'" in failed.stdout
    assert 'float(flight["delay"])' in failed.stdout  # the line of the handler
    (folder / "debugged.py").write_text(APP.replace('flight["delay"]', 'flight.get("delay", 0)'))
    mended = pytest_on(folder)
    assert mended.returncode == 0, mended.stdout


@pytest.mark.slow
def test_the_debugger_stops_in_the_handler(place: list[object], folder: Path, letter: str) -> None:
    done = actorproc("debug", letter, "debugged:Delays", *place, cwd=folder, input="p sorted(flight)\nq\n")
    assert done.returncode == 2  # pytest: interrupted
    assert "(Pdb) ['tail']" in done.stdout, done.stdout + done.stderr


def test_a_file_that_exists_is_left_alone(run: Run, place: list[object], folder: Path, letter: str) -> None:
    (folder / "test_it.py").write_text("mine")
    refused = run("debug", letter, "debugged:Delays", *place, "--no-run", "--file", "test_it.py")
    assert refused.exit_code == 2
    assert "test_it.py exists" in refused.output
    assert (folder / "test_it.py").read_text() == "mine"
