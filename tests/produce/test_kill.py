"""A producer killed with -9 leaves a whole log with all confirmed records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actorproc.produce.producer import Producer
from actorproc.stores import open_store
from tests.log.reading import log_contents

PROGRAM = """
import sys, anyio
from actorproc import Producer

async def main():
    async with Producer(sys.argv[1], partitions=2, linger=0.002) as producer:
        number = 0
        while True:
            sent = await producer.send_many([f"{sys.argv[2]}/{number + i}/" + "x" * 20_000 for i in range(100)])
            number += 100
            for place in await sent:
                print(place.partition, place.sequence, flush=False)
            sys.stdout.flush()

anyio.run(main)
"""


@pytest.mark.parametrize("after", [1, 350, 900])
async def test_a_producer_killed_while_it_writes_leaves_a_whole_log(tmp_path: Path, after: int) -> None:
    url = str(tmp_path / "log")
    confirmed: list[tuple[str, tuple[str, int]]] = []
    for run in ("first", "second"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, run], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                if not line.endswith("\n"):
                    break
                partition, sequence = line.split()
                confirmed.append((f"{run}/{number}/", (partition, int(sequence))))
                if number == after:
                    os.kill(process.pid, signal.SIGKILL)
    async with Producer(url) as producer:
        await (await producer.send("the end"))
    async with open_store(url) as store:
        contents = await log_contents(store)
    assert len(confirmed) > 2 * after
    for text, (where, at) in confirmed:
        assert (contents[where][at] or b"").startswith(text.encode())
    every = [value for values in contents.values() for value in values]
    assert len(set(every)) == len(every)
    assert every.count(b"the end") == 1
