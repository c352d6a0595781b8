"""`produce` that ends early prints which lines are in the log, and the line from which to go on."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from actorproc.cli import produce
from actorproc.produce.producer import Producer
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


def test_a_refusing_partition_leaves_a_line_to_go_on_from(run: Run, folder: Path) -> None:
    run(*PRODUCE, "/dev/null")
    (folder / "events" / "partition=1").write_text("in the way")
    ended = run(*PRODUCE, "flights.txt")
    assert ended.exit_code == 1
    there = in_log()
    assert len(there) == 100
    missing = min(set(range(1, 201)) - set(there))
    assert f"100 events are in events. The first line of flights.txt that may be missing is {missing}." in ended.stderr
    again = (
        f"run the command again with --from-line {missing}. Later lines that are in the log are appended a second time"
    )
    assert ended.stderr.endswith(f"{again}\n")


def test_going_on_after_a_full_disk_loses_nothing(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    first = int(re.findall(r"--from-line (\d+)", ended.stderr)[0])
    assert f"{len(there)} events are in events. The first line of blank that may be missing is {first}" in ended.stderr
    assert first == 2 * min(set(range(1, 201)) - set(there)) + 1, "blank lines count"
    assert run(*PRODUCE, "--from-line", first, "blank").exit_code == 0
    assert min(Counter(in_log()).values()) == 1
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
        assert f"all of flights.txt up to line {len(there)}, and nothing after it. To append the rest, run" in err
        assert err.endswith(f"--from-line {len(there) + 1}\n")
    else:
        missing = min(set(range(1, 201)) - set(there))
        assert f"The first line of flights.txt that may be missing is {missing}" in err


def test_a_signal_during_the_final_flush_keeps_the_error(run: Run, folder: Path) -> None:
    run(*PRODUCE, "/dev/null")
    (folder / "events" / "partition=0").write_text("in the way")
    (folder / "full").touch()
    soon = "from actorproc.produce import input_producer; input_producer._IN_FLIGHT = 0"
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
    assert "100 events are in events. The first line of flights.txt that may be missing is " in err


def test_csv_goes_on_from_a_line_with_its_header(run: Run, folder: Path) -> None:
    rows = [b'%d,"text\nof %d"\n' % (n, n) for n in range(1, 21)]
    (folder / "rows.csv").write_bytes(b"n,text\n" + b"".join(rows[:10]) + b"1,2,3\n" + b"".join(rows[10:]))
    ended = run(*PRODUCE, "--key", "n", "rows.csv")
    assert ended.exit_code == 2
    why = "rows.csv: line 22: not a row of this CSV (3 fields, and the header has 2): 1,2,3.\n10 events are in events"
    assert why in ended.stderr
    assert ended.stderr.endswith("and run the command again with --from-line 22\n")
    going_on = run(*PRODUCE, "--key", "n", "--from-line", 22, "--on-bad-line", "skip", "rows.csv")
    assert "10 events appended to events" in going_on.stdout


@pytest.mark.parametrize("on_bad_line", ["fail", "keep", "skip"])
def test_a_csv_header_that_is_not_utf8_ends_produce_with_an_error(run: Run, folder: Path, on_bad_line: str) -> None:
    (folder / "rows.csv").write_bytes("n,größe\n1,2\n3,4\n".encode("latin-1"))
    ended = run(*PRODUCE, "--on-bad-line", on_bad_line, "rows.csv")
    assert ended.exit_code == 2
    assert r"the CSV header is not UTF-8, at b'gr\xf6\xdfe': convert the input" in ended.stderr


def test_text_lines_have_no_key(run: Run, folder: Path) -> None:
    ended = run(*PRODUCE, "--format", "text", "--key", "a", "flights.txt")
    assert ended.exit_code == 2
    assert "--key and --timestamp name a field of JSON or CSV, and text has none" in ended.stderr


def test_an_unreadable_input_is_an_error_that_says_nothing_was_appended(run: Run) -> None:
    ended = run(*PRODUCE, "/proc/self/mem")  # opens, and cannot be read at 0
    assert ended.exit_code == 1
    assert ended.stderr == "error: cannot read /proc/self/mem: Input/output error.\nNothing was appended\n"


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
