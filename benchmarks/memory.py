"""Peak memory of one host that works through a backlog, half of it, and a tenth of it. Folder store, JsonRows.

Settings limit the memory; the length of the log does not matter.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import JsonRows, Processor
from actorproc.config.settings import Settings
from benchmarks.backlog import make_backlog
from benchmarks.processes import in_own_process, resident

PARTITIONS = 8
SAMPLED = 0.05  # seconds
MIB = 2**20


class Typed(JsonRows):
    output_schema = "carrier string, origin string, minutes double, id bigint"


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of memory before, and at every sample. `limits`: of the settings that bound it."""

    before: int
    samples: list[int]
    seconds: float

    @property
    def peak(self) -> int:
        return max(self.samples)

    def by(self, share: float) -> int:
        """The peak of the first `share` of the run."""
        return max(self.samples[: max(1, round(len(self.samples) * share))])


def process(log: Path, container: Path) -> Run:
    """Run one host until the end of the log."""
    processor = Processor(Typed, source=str(log), container=str(container), host="bench")
    before, samples, done = resident(), [], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLED):
            samples.append(resident())

    sampler = threading.Thread(target=sample)
    began = time.perf_counter()
    sampler.start()
    try:
        anyio.run(lambda: processor.run(until_end=True))
    finally:
        done.set()
        sampler.join()
    return Run(before, samples, time.perf_counter() - began)


def run(events: int = 10_000_000) -> None:
    """Print the table."""
    console = Console()
    table = Table(title=f"one host, {PARTITIONS} partitions, folder store; MiB resident")
    for heading in ("backlog, events", "events/s", "before", "peak of the first quarter", "half", "all", "grown by"):
        table.add_column(heading, justify="right")
    peaks = []
    for backlog in (events // 10, events // 2, events):
        with (
            tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name,
            console.status(f"{backlog:,} events") as status,
        ):
            folder = Path(name)
            anyio.run(make_backlog, folder / "log", backlog, PARTITIONS)
            status.update(f"{backlog:,} events: processing")
            measured = in_own_process(process, folder / "log", folder / "state")
        peaks.append(measured.peak)
        table.add_row(
            f"{backlog:,}", f"{backlog / measured.seconds:,.0f}",
            *(f"{size / MIB:,.0f}" for size in (measured.before, measured.by(0.25), measured.by(0.5), measured.peak)),
            f"{(measured.peak - measured.before) / MIB:,.0f}",
        )  # fmt: skip
    console.print(table)
    settings = Settings.load()
    console.print(
        f"From half the backlog to all of it: {peaks[2] / peaks[1]:.2f} times the memory. What bounds it, per host: "
        f"read_ahead_bytes = {settings.read_ahead_bytes // MIB} MiB and uncommitted_bytes = "
        f"{settings.uncommitted_bytes // MIB} MiB; per partition read_ahead_batches = {settings.read_ahead_batches} "
        f"of max_batch_records = {settings.max_batch_records:,} or max_batch_bytes = "
        f"{settings.max_batch_bytes // MIB} MiB, and rows that wait for a commit: commit_bytes = "
        f"{settings.commit_bytes // MIB} MiB, commit_rows = {settings.commit_rows:,} or commit_interval = "
        f"{settings.commit_interval:g} s."
    )


if __name__ == "__main__":
    run()
