"""Hosts are killed, and the server is stopped: each committed row arrives, and requests repeat with their key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.connectors.http.receiver import Answer, Receiver, Request, receiver

pytestmark = pytest.mark.long

APP = """
import time
from actorproc import RecordHandler

class Copy(RecordHandler):
    output_schema = "n long, word string"

    def process_record(self, record, ctx):
        n = record.json()["n"]
        time.sleep(0.001)  # so that the stream lasts
        return {"n": n, "word": f"word {n}"}
"""
EVENTS = 80_000
QUICK = [
    "lease_acquire_interval=1", "lease_renew_interval=0.5", "lease_expiration_interval=3", "rebalance_delay=0.3",
    "commit_interval=100ms", "max_batch_records=200",
]  # fmt: skip


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "actorproc", *words]


@contextmanager
def host(folder: Path, server: Receiver, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = [word for setting in QUICK for word in ("--set", setting)]
    place = ["--source", "events", "--container", "state", "--sink", f"hook={server.url}"]
    line = command("serve", "app:Copy", *place, "--sink-option", "hook.request_rows=50", *settings, *words)
    with (folder / "hosts.log").open("ab") as log:
        process = subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": "."})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Hosts take long to start on a busy machine."""
    until = time.monotonic() + 90
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_each_committed_row_arrives_and_repeats_have_their_key(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "events.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(EVENTS)))
    produce = command("produce", "events.jsonl", "--log", "events", "--partitions", "6", "--key", "n")
    subprocess.run(produce, cwd=tmp_path, check=True, capture_output=True)
    random = Random(7)

    def sometimes(request: Request) -> Answer:
        if (share := random.random()) < 0.02:
            return Answer(is_lost=True)
        return Answer(503, {"Retry-After": "0"}, takes=False) if share < 0.04 else Answer()

    with receiver() as server:
        server.answer = sometimes
        for round_ in range(6):
            before = len(server.kept)
            with host(tmp_path, server, "--host", "a"), host(tmp_path, server, "--host", "b") as other:
                wait_until(lambda: len(server.kept) > before + 10)  # noqa: B023
                time.sleep(random.uniform(0, 1))
                if round_ % 3 == 1:
                    server.stop()
                    time.sleep(1)
                    server.start()
                if round_ % 3 == 2:
                    other.send_signal(signal.SIGSTOP)
                    time.sleep(4)  # its leases expire, and another host goes on
                    other.send_signal(signal.SIGCONT)
                    time.sleep(1)
        with host(tmp_path, server, "--host", "last", "--until-end") as last:
            assert last.wait(timeout=240) == 0, (tmp_path / "hosts.log").read_text()[-3000:]
        found = Counter(row["n"] for row in server.rows)
        assert (len(found), set(found.values())) == (EVENTS, {1})
        assert server.repeats > 10
        assert server.foreign == []
