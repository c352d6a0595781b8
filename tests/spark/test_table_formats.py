"""The examples that write tables, each with the newest PySpark that the format's package knows: killed, and run
again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actorproc.demo.data import load_departures
from tests.spark.conftest import ROOT
from tests.spark.environments import environment, variables
from tests.spark.flights import Flights

_MOST_KILLS = 6
_PATIENCE = 240.0  # seconds, for a Spark that starts on a busy machine


@dataclass(frozen=True)
class Format:
    """`where`: the example's variable for its place. `versions`: the files below it that make its commits visible, the
    first `empty` of them without rows."""

    pyspark: str
    module: str
    where: str
    versions: str
    empty: int


FORMATS = [
    pytest.param(Format("4.2.1", "examples.delta_table", "TABLE", "_delta_log/*.json", 0), id="delta"),
    pytest.param(
        Format("4.1.4", "examples.iceberg_table", "WAREHOUSE", "flights/delays/metadata/v*.metadata.json", 1),
        id="iceberg",
    ),
]


class Driver:
    """The driver of an example, its table, and Spark's checkpoint."""

    def __init__(self, kind: Format, python: Path, container: str, folder: Path) -> None:
        self._kind = kind
        self._said = ""
        self._table, self._checkpoint, self._log = folder / "table", folder / "checkpoint", folder / "driver.log"
        self._command = [str(python), "-m", "tests.spark.into_table", kind.module, container, str(self._checkpoint)]
        self._environment = {**variables(), kind.where: str(self._table)}

    @contextmanager
    def killed_at_the_end(self) -> Iterator[subprocess.Popen[bytes]]:
        """The stream, which then dies with -9, and its Java with it."""
        with self._log.open("ab") as log:
            command = [*self._command, "forever"]
            driver = subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=log, start_new_session=True)
        try:
            yield driver
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def rest(self) -> Iterator[dict[str, Any]]:
        """Run the remaining batches to the end, and read the table."""
        command = [*self._command, "rest"]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        self._said = done.stderr
        assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "\tat " not in line)[-3000:]
        return (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))

    def evidence(self) -> str:
        """The files of table and checkpoint, and the last run's output about its batches: they show which part lost
        a row."""
        notes = sorted([*self._checkpoint.glob("offsets/*"), *self._checkpoint.glob("commits/*")])
        lines = [f"{path.relative_to(self._checkpoint)}: {path.read_text()}" for path in notes]
        lines += [f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self._table.glob(self._kind.versions))]
        return "\n".join([*lines, *(line for line in self._said.splitlines() if "epoch" in line or "atch" in line)])

    def commits(self) -> int:
        """Of the table."""
        return max(0, len(list(self._table.glob(self._kind.versions))) - self._kind.empty)

    def has_committed_since(self, before: int) -> bool:
        return self.commits() > before

    def owes_a_note(self) -> bool:
        """Whether a batch was begun, and not noted as done in the checkpoint: it will be run again."""
        offsets, commits = (
            sum(path.name.isdecimal() for path in (self._checkpoint / folder).glob("*"))
            for folder in ("offsets", "commits")
        )
        return commits < offsets


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", FORMATS)
async def test_a_table_has_each_row_once_after_a_kill_at_a_commit(kind: Format, tmp_path: Path) -> None:
    python = environment(kind.pyspark)
    departures, flights = load_departures(), Flights(str(tmp_path / "state"))
    driver = Driver(kind, python, flights.container, tmp_path)
    end, repeat_string = 500, 0
    await flights.commit(departures[:end])

    for _ in range(_MOST_KILLS):
        with driver.killed_at_the_end() as process:
            _wait(process, lambda: driver.commits() > 0 and not driver.owes_a_note())
            before, end = driver.commits(), end + 500
            await flights.commit(departures[end - 500 : end])
            _wait(process, partial(driver.has_committed_since, before))
        if driver.owes_a_note():
            repeat_string += 1
        if repeat_string == 2:
            break
    assert repeat_string, "no kill came between the table's commit and Spark's note of it"

    in_output = sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("state/*/output/*/*.parquet"))
    found = Counter(
        (row["carrier"], row["flight"], row["origin"], datetime.fromisoformat(row["scheduled"]), row["minutes"])
        for row in driver.rest()
    )
    expected = Counter(
        (row["carrier"], row["flight"], row["origin"], row["scheduled"], row["dep_delay"])
        for row in departures[:end].to_pylist()
        if row["dep_delay"] is not None
    )
    assert in_output == expected.total()
    assert found == expected, driver.evidence()


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, "the driver does not get on"
        time.sleep(0.001)
