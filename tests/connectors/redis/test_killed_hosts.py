"""Hosts and the server are killed, and the server goes back to older data: each committed row is in the stream once."""

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

from tests.connectors.redis.server import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.long]

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
def host(folder: Path, server: RedisServer, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = [word for setting in QUICK for word in ("--set", setting)]
    place = ["--source", "events", "--container", "state", "--sink", f"r={server.url}"]
    line = command("serve", "app:Copy", *place, "--sink-option", "r.stream=copies", *settings, *words)
    with (folder / "hosts.log").open("ab") as log:
        process = subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": "."})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def numbers(server: RedisServer) -> list[int]:
    with server.client() as client:
        return [int(fields["n"]) for _, fields in client.xrange("copies")]


def count(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.xlen("copies"))


def wait_until(is_true: Callable[[], bool]) -> None:
    """Hosts take long to start on a busy machine."""
    until = time.monotonic() + 90
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_each_committed_row_is_in_the_stream_once(own_server: RedisServer, tmp_path: Path) -> None:
    server = own_server
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "events.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(EVENTS)))
    produce = command("produce", "events.jsonl", "--log", "events", "--partitions", "6", "--key", "n")
    subprocess.run(produce, cwd=tmp_path, check=True, capture_output=True)
    random = Random(7)
    for round_ in range(8):
        before = count(server)
        with host(tmp_path, server, "--host", "a"), host(tmp_path, server, "--host", "b") as other:
            wait_until(lambda: count(server) > before + 500)  # noqa: B023
            time.sleep(random.uniform(0, 1))
            match round_ % 4:
                case 1:
                    server.kill()
                    time.sleep(0.5)
                    server.start()
                case 2:
                    other.send_signal(signal.SIGSTOP)
                    time.sleep(4)  # its leases expire, and another host goes on
                    other.send_signal(signal.SIGCONT)
                    time.sleep(1)
                case 3:
                    server.copy()
                    copied = count(server)
                    wait_until(lambda: count(server) >= copied + 1000)  # noqa: B023
                    server.go_back()
                    assert count(server) < copied + 1000
                    time.sleep(1)
    with host(tmp_path, server, "--host", "last", "--until-end") as last:
        assert last.wait(timeout=240) == 0, (tmp_path / "hosts.log").read_text()[-3000:]
    found = Counter(numbers(server))
    assert (len(found), set(found.values())) == (EVENTS, {1})
