"""Hosts that deliver to a sink, as processes of their own that are killed, paused and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

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
QUICK = [
    "lease_acquire_interval=1", "lease_renew_interval=0.5", "lease_expiration_interval=3", "rebalance_delay=0.3",
    "commit_interval=100ms", "max_batch_records=200",
]  # fmt: skip


def command(*words: str) -> list[str]:
    """The command line of actorproc."""
    return [sys.executable, "-m", "actorproc", *words]


def feed(folder: Path, events: int) -> None:
    """A log of so many numbers, in the folder, and the handler for them."""
    (folder / "app.py").write_text(APP)
    (folder / "events.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(events)))
    produce = command("produce", "events.jsonl", "--log", "events", "--partitions", "6", "--key", "n")
    subprocess.run(produce, cwd=folder, check=True, capture_output=True)


@contextmanager
def host(folder: Path, sink: Sequence[str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A host that delivers to the sink, and is killed at the end of the block. `sink`: options of `serve`."""
    settings = [word for setting in QUICK for word in ("--set", setting)]
    place = ["--source", "events", "--container", "state", *sink]
    line = command("serve", "app:Copy", *place, *settings, *words)
    with (folder / "hosts.log").open("ab") as log:
        process = subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": "."})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def pause(process: subprocess.Popen[bytes]) -> None:
    """Freeze a host until its leases have expired and another host goes on; then it continues."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    time.sleep(1)


def wait_until(is_true: Callable[[], bool]) -> None:
    """Hosts take long to start on a busy machine."""
    until = time.monotonic() + 90
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.1)


def deliver_the_rest(folder: Path, sink: Sequence[str]) -> None:
    """Run a host until the end."""
    with host(folder, sink, "--host", "last", "--until-end") as last:
        assert last.wait(timeout=240) == 0, (folder / "hosts.log").read_text()[-3000:]


def deliver_with_killed_hosts(
    folder: Path, sink: Sequence[str], events: int, strike: Callable[[], None], count: Callable[[], int]
) -> None:
    """Deliver `events` numbers to the sink while hosts are killed and paused, and `strike` is called. Then the rest.

    Args:
        sink: options of `serve`.
        count: the rows that the target has; they must have grown between the rounds.
    """
    feed(folder, events)
    random, counts = Random(7), []
    for round_ in range(5):
        with host(folder, sink, "--host", "a"), host(folder, sink, "--host", "b") as other:
            time.sleep(random.uniform(2, 4))
            if round_ % 3 == 1:
                strike()
                time.sleep(1)
            if round_ % 3 == 2:
                pause(other)
        counts.append(count())
    assert len(set(counts)) > 3, counts  # rows arrived in most rounds
    deliver_the_rest(folder, sink)
