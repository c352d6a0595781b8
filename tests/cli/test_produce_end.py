"""`produce` that ends early prints which lines are in the log, and a command that goes on."""

from __future__ import annotations

import errno
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import orjson
import pytest

from actorproc.cli import produce
from actorproc.log.producer import Producer
from actorproc.runtime.signals import SAME_SIGNAL_TIME
from actorproc.stores import open_store
from actorproc.stores.folder import FolderStore
from tests.cli.conftest import Run
from tests.log.reading import log_contents

PRODUCE = ["produce", "--log", "events", "--partitions", "2"]

FULL = """
import errno, os, sys
from actorproc.cli import main
from actorproc.stores.folder import FolderStore

create = FolderStore._create

def full(self, path, body):
    if "partition=1" in path and os.path.exists("full"):
        open("tried", "w").close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return create(self, path, body)

FolderStore._create = full
main()
"""
"""The command, on a disk that is full for one partition while there is a file `full`."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights.txt").write_text("".join(f"{n}\n" for n in range(1, 201)))
    return tmp_path


def in_log() -> list[int]:
    """Numbers of the lines in the log; each line is its number."""

    async def read() -> list[int]:
        async with open_store("events") as store:
            return sorted(int(value or b"") for values in (await log_contents(store)).values() for value in values)

    return anyio.run(read)


def json_in_log() -> list[dict[str, str]]:
    async def read() -> list[dict[str, str]]:
        async with open_store("events") as store:
            return [orjson.loads(value or b"") for values in (await log_contents(store)).values() for value in values]

    return anyio.run(read)


def test_a_refusing_partition_leaves_a_command_that_goes_on(run: Run, folder: Path) -> None:
    run(*PRODUCE, "/dev/null")
    (folder / "events" / "partition=1").write_text("in the way")
    ended = run(*PRODUCE, "flights.txt")
    assert ended.exit_code == 1
    there = in_log()
    assert len(there) == 100
    missing = min(set(range(1, 201)) - set(there))
    assert "100 events are in events. The first" in ended.stderr, "what was refused is in no doubt"
    beyond = f"{100 - missing + 1} of the appended events come after it"
    assert f"The first line of flights.txt that is missing is {missing}; {beyond}." in ended.stderr
    again = f"tail -n +{missing} flights.txt | actorproc produce --log events -"
    assert ended.stderr.endswith(
        f"go on from line {missing}, which appends later lines that are in the log a second time: {again}\n"
    )


def test_the_resume_command_after_a_full_disk_loses_nothing(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []
    create = FolderStore._create

    def full(self: FolderStore, path: str, body: bytes) -> str:
        if "partition=" in path and len(files) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        tag = create(self, path, body)
        files.extend([path] if "partition=" in path else [])
        return tag

    (folder / "blank").write_text("\n \n" + (folder / "flights.txt").read_text().replace("\n", "\n\n"))
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "_create", full)
        patch.setattr(produce, "Producer", partial(Producer, delivery_timeout=1, linger=0.1))
        ended = run(*PRODUCE, "--rate", "200", "blank")
    assert ended.exit_code == 1
    there = in_log()
    first = int(re.findall(r"missing is (\d+)", ended.stderr)[0])
    assert f"{len(there)} events are in events, and " in ended.stderr
    assert first == 2 * min(set(range(1, 201)) - set(there)) + 1, "lines are counted as `tail` does, blank ones, too"
    again = ended.stderr.strip().rpartition(": ")[2]
    assert again == f"tail -n +{first} blank | actorproc produce --log events --rate 200 -"
    rest = again.replace("actorproc", shlex.join([sys.executable, "-m", "actorproc"])).replace("--rate 200", "")
    subprocess.run(["bash", "-c", rest], check=True, capture_output=True)
    assert set(in_log()) == set(range(1, 201))


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_the_disk_is_full_reports_delivered_lines(folder: Path, times: int) -> None:
    command = [sys.executable, "-c", FULL, *PRODUCE, "--rate", "100", "flights.txt"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: any((folder / "events").glob("partition=1/*.parquet")))
            (folder / "full").touch()
            wait_for((folder / "tried").exists)
            process.send_signal(signal.SIGTERM)
            time.sleep(2 * SAME_SIGNAL_TIME)
            if times == 1:
                (folder / "full").unlink()
            else:
                process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    there = in_log()
    assert process.returncode == 1
    assert f"interrupted: {len(there)} events are in events" in err
    if times == 1:
        assert there == list(range(1, len(there) + 1))
        assert (
            f"all of flights.txt up to line {len(there)}, and nothing after it. To append the rest, go on from" in err
        )
        assert f"tail -n +{len(there) + 1} flights.txt | actorproc produce --log events --rate 100 -" in err
    else:
        missing = min(set(range(1, 201)) - set(there))
        assert f" more may be in the log or not. The first line of flights.txt that may be missing is {missing}" in err


def test_a_signal_during_the_final_flush_keeps_the_error(run: Run, folder: Path) -> None:
    run(*PRODUCE, "/dev/null")
    (folder / "events" / "partition=0").write_text("in the way")
    (folder / "full").touch()
    soon = "from actorproc.log import input_producer; input_producer._IN_FLIGHT = 0"
    command = [sys.executable, "-c", soon + FULL, *PRODUCE, "flights.txt"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for((folder / "tried").exists)
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            time.sleep(2 * SAME_SIGNAL_TIME)
            (folder / "full").unlink()
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "100 events are in events. The first line of flights.txt that is missing is " in err


@pytest.mark.parametrize(
    ("file", "options", "more"),
    [
        ("rows.csv", ["--key-column", "n"], ["--key-column", "n"]),
        ("rows.txt", ["--timestamp-column", "n"], ["--timestamp-column", "n"]),
        ("rows.csv", [], ["--format", "csv"]),
        ("rows.txt", ["--format", "csv"], ["--format", "csv"]),
    ],
)
def test_csv_goes_on_with_its_header(run: Run, folder: Path, file: str, options: list[str], more: list[str]) -> None:
    rows = [b'%d,"text\nof %d"\n' % (n, n) for n in range(1, 21)]
    (folder / file).write_bytes(b"n,text\n" + b"".join(rows[:10]) + b"1,2,3\n" + b"".join(rows[10:]))
    ended = run(*PRODUCE, *options, file)
    assert ended.exit_code == 2
    assert f"{file}: line 22: not a row of this CSV (3 fields, and the header has 2): 1,2,3.\n10 events" in ended.stderr
    again = ended.stderr.strip().rpartition("from line 22: ")[2]
    command = shlex.join(["actorproc", "produce", "--log", "events", *more, "--on-bad-line", "keep", "-"])
    assert again == f"{{ head -n 1 {file}; tail -n +22 {file}; }} | {command}"
    rest = again.replace("actorproc", shlex.join([sys.executable, "-m", "actorproc"])).replace("keep", "skip")
    subprocess.run(["bash", "-c", rest], check=True, capture_output=True)
    assert sorted(row["n"] for row in json_in_log()) == sorted(str(n) for n in range(1, 21))


@pytest.mark.parametrize("on_bad_line", ["fail", "keep", "skip"])
def test_a_csv_header_that_is_not_utf8_ends_produce_with_an_error(run: Run, folder: Path, on_bad_line: str) -> None:
    (folder / "rows.csv").write_bytes("n,größe\n1,2\n3,4\n".encode("latin-1"))
    ended = run(*PRODUCE, "--on-bad-line", on_bad_line, "rows.csv")
    assert ended.exit_code == 2
    assert r"the CSV header is not UTF-8, at b'gr\xf6\xdfe': convert the input" in ended.stderr


def test_text_lines_go_on_with_their_regex(run: Run, folder: Path) -> None:
    (folder / "access.log").write_text("a x\n b\nc z\n")
    ended = run(*PRODUCE, "--key-regex", r"^(\S+)", "access.log")
    again = ended.stderr.strip().rpartition("from line 2: ")[2]
    command = r"actorproc produce --log events --key-regex '^(\S+)' --on-bad-line keep -"
    assert again == f"tail -n +2 access.log | {command}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--key", "a", "--key-column", "a", "x.csv"], "choose one"),
        (["--key", "a", "flights.csv"], "--key is for json, and the input is csv: give --key-column, or --format json"),
        (
            ["--key", "a", "--timestamp-column", "t", "x"],
            "--timestamp-column is for csv: choose one",
        ),
        (
            ["--format", "text", "--timestamp-field", "t", "x"],
            "--timestamp-field is for json, and the input is text: give --format json",
        ),
        (["--format", "json", "--key-regex", "(a)", "x"], "--key-regex is for text, and the input is json: give --key"),
    ],
)
def test_a_key_option_of_another_format_is_refused(run: Run, options: list[str], says: str) -> None:
    ended = run(*PRODUCE, *options)
    assert ended.exit_code == 2
    assert says in ended.stderr


def test_an_unreadable_input_is_an_error_that_says_nothing_was_appended(run: Run) -> None:
    ended = run(*PRODUCE, "/proc/self/mem")  # opens, and cannot be read at 0
    assert ended.exit_code == 1
    assert ended.stderr == "error: cannot read /proc/self/mem: Input/output error.\nNothing was appended\n"


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
