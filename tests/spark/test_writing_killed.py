"""A stream into a log whose driver is killed while it appends. Alone in its file: it starts its own Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from actorproc import Producer
from tests.spark.conftest import ROOT
from tests.spark.test_writing import staged, values

BATCHES, RECORDS, KILLS = 16, 300, 4


def files(log: Path) -> int:
    return len(list(log.glob("partition=*/*.parquet")))


def killed(process: subprocess.Popen[bytes], log: Path, random: Random) -> bool:
    """Kill it and its Java in the middle of an append, two micro-batches on or so; false if it came to its end
    first."""
    enough = files(log) + random.randint(9, 20)  # eight files make a micro-batch
    while files(log) < enough:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    time.sleep(random.choice([0, 0, 0.01, 0.1]))
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_driver_killed_while_appending_loses_and_repeats_nothing(tmp_path: Path) -> None:
    source, log, checkpoint = (tmp_path / name for name in ("source", "log", "checkpoint"))
    expected: Counter[int] = Counter(range(BATCHES * RECORDS))
    for batch in range(BATCHES):
        async with Producer(str(source), partitions=1) as producer:
            numbers = [str(n) for n in range(batch * RECORDS, (batch + 1) * RECORDS)]
            await producer.send_many(numbers, keys=numbers)
    command = [sys.executable, "-m", "tests.spark.log_sink", str(source), str(log), str(checkpoint)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    random, kills = Random(7), 0
    while True:
        with (tmp_path / "spark.log").open("wb") as stderr:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stderr=stderr)
        try:
            if kills < KILLS and killed(process, log, random):
                kills += 1
                continue
            assert process.wait(300) == 0, (tmp_path / "spark.log").read_text()[-3000:]
            break
        finally:
            process.kill()
    assert kills >= KILLS - 1
    assert await values(str(log)) == expected
    assert await staged(str(log)) == []
