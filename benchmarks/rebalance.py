"""A second host joins while all partitions are busy, takes half of them, and is stopped again: who waits, and how long.

Two host processes, and a third process that feeds the log; folder store, default timers. Goals: the new host runs its
half within 2 s after the rebalance delay; a graceful stop leaves a gap below 1 s; handoffs repeat no record. For the
partitions that stay, the table shows the time between batches during the move, and when nothing moves.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import orjson
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from actorproc import Batch, CloseReason, PartitionContext, PartitionHandler, PartitionInfo, Processor, Producer
from actorproc.config.settings import Settings
from benchmarks.processes import only_warnings

RECORDS_PER_SECOND = 10  # of each partition
SETTLING = 15.0  # seconds, before and after the join, and before the stop
PATIENCE = 60.0  # seconds after which a step counts as failed

spawn = multiprocessing.get_context("spawn")


class Note(NamedTuple):
    """A line of a host's diary. `at`: seconds on the machine's monotonic clock, which its processes share."""

    what: str
    at: float
    partition: str = ""
    first: int = 0
    last: int = 0


class Diary(PartitionHandler):
    """Emits a row per record, and writes down what it is given and when, a line each, as it happens."""

    output_schema = "n bigint"

    class Options(BaseModel):
        diary: int

    async def opened(self, ctx: PartitionInfo) -> None:
        write_note(ctx.options.diary, Note("opened", time.perf_counter(), ctx.partition))

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        ctx.emit_each(batch, [{"n": sequence} for sequence in batch.sequences])
        note = Note("batch", time.perf_counter(), ctx.partition, batch.first, batch.last)
        write_note(ctx.options.diary, note)

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        write_note(ctx.options.diary, Note("closed", time.perf_counter(), ctx.partition))


def write_note(diary: int, note: Note) -> None:
    """Append a line, at once."""
    os.write(diary, orjson.dumps(list(note)) + b"\n")


def read_diary(folder: Path, host: str) -> list[Note]:
    """All that a host wrote down."""
    lines = (folder / f"{host}.diary").read_bytes().splitlines()
    return [Note(*orjson.loads(line)) for line in lines]


def host(name: str, folder: Path) -> None:
    """A host process, until SIGTERM."""
    only_warnings()
    diary = os.open(folder / f"{name}.diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    processor = Processor(
        Diary, source=str(folder / "log"), container=str(folder / "state"), host=name, options={"diary": diary}
    )
    write_note(diary, Note("joining", time.perf_counter()))
    anyio.run(lambda: processor.run(signals=True))


def feed(folder: Path) -> None:
    """Append to every partition each second, until killed."""
    only_warnings()
    anyio.run(_feed, folder)


async def _feed(folder: Path) -> None:
    async with Producer(str(folder / "log"), partitioner="round-robin", linger=0.05) as producer:
        values = [b'{"n": %d}' % n for n in range(RECORDS_PER_SECOND * producer.partitions)]
        while True:
            await producer.send_many(values)
            await anyio.sleep(1)


@dataclass(frozen=True, slots=True)
class Moves:
    """What the partitions that changed hosts met, in seconds. `gaps`: from the end of `closing` on the old host, with
    everything committed, until `opened` on the new. `silences`: from the last batch there to the first batch here."""

    gaps: list[float]
    silences: list[float]


def run(partitions: int = 256) -> None:
    """Print the tables."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        anyio.run(_create, folder, partitions)
        processes = {
            "feeder": spawn.Process(target=feed, args=(folder,), daemon=True),
            "a": spawn.Process(target=host, args=("a", folder), daemon=True),
            "b": spawn.Process(target=host, args=("b", folder), daemon=True),
        }
        try:
            _play(console, folder, processes, partitions)
        finally:
            for process in processes.values():
                if process.is_alive():
                    process.kill()
                    process.join()


async def _create(folder: Path, partitions: int) -> None:
    async with Producer(str(folder / "log"), partitions=partitions):
        pass


def _play(console: Console, folder: Path, processes: Mapping[str, BaseProcess], partitions: int) -> None:
    with console.status("one host, busy") as status:
        processes["feeder"].start()
        processes["a"].start()
        _wait(folder, "a", processes, partitions)
        time.sleep(SETTLING)
        status.update("a second host joins")
        processes["b"].start()
        _wait(folder, "b", processes, partitions // 2)
        time.sleep(SETTLING)
        status.update("it is stopped")
        stopped = time.perf_counter()
        processes["b"].terminate()
        _wait(folder, "a", processes, partitions)
        processes["b"].join(PATIENCE)
        time.sleep(SETTLING)
        processes["feeder"].kill()
        processes["a"].terminate()
        processes["a"].join(PATIENCE)
    _print(console, {name: read_diary(folder, name) for name in "ab"}, stopped, partitions)


def _wait(folder: Path, name: str, processes: Mapping[str, BaseProcess], count: int) -> None:
    """Until so many partitions run on a host."""
    give_up = time.perf_counter() + PATIENCE
    while time.perf_counter() < give_up:
        time.sleep(0.2)
        if (folder / f"{name}.diary").exists() and open_partitions(read_diary(folder, name)) == count:
            return
        if not (processes["feeder"].is_alive() and processes[name].is_alive()):
            raise ChildProcessError("a process of the benchmark has died; it said why above")
    raise TimeoutError(f"host {name} does not run {count} partitions after {PATIENCE:g} s")


def open_partitions(notes: list[Note]) -> int:
    """How many partitions the host runs now."""
    return len([n for n in notes if n.what == "opened"]) - len([n for n in notes if n.what == "closed"])


def _print(console: Console, diaries: dict[str, list[Note]], stopped: float, partitions: int) -> None:
    delay = Settings().rebalance_delay
    joining = next(note.at for note in diaries["b"] if note.what == "joining")
    half = sorted(note.at for note in diaries["b"] if note.what == "opened")[partitions // 2 - 1]
    reopened = max(note.at for note in diaries["a"] if note.what == "opened")
    join, leave = moves(diaries["a"], diaries["b"], joining), moves(diaries["b"], diaries["a"], stopped)
    stay = {note.partition for note in diaries["a"]} - {note.partition for note in diaries["b"]}
    calm = longest_gaps(diaries["a"], stay, joining - SETTLING, joining)
    join_stay = longest_gaps(diaries["a"], stay, joining, half)
    leave_stay = longest_gaps(diaries["a"], stay, stopped, reopened)
    repeated, handled = repeats([*diaries["a"], *diaries["b"]])

    table = Table(title=f"{partitions} busy partitions ({RECORDS_PER_SECOND} records a second each), two hosts")
    for heading in ("what", "measured", "bar"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row("from the second host's start until it runs its half", f"{half - joining:.2f} s", "")
    table.add_row(f"without the rebalance delay of {delay:g} s", _coloured(half - joining - delay, 2), "<= 2 s")
    table.add_row("from its SIGTERM until the other runs all", f"{reopened - stopped:.2f} s", "")
    table.add_row("records handled; repeated by handoffs", f"{handled:,}; {_coloured(repeated, 0, '')}", "0")
    console.print(table)

    table = Table(title="each partition, seconds")
    for heading in ("", "partitions", "median", "p99", "longest", "bar"):
        table.add_column(heading, justify="right" if heading else "left")
    for what, found, bar in (
        ("moved, join: closed there, open here", join.gaps, None),
        ("moved, graceful stop: closed there, open here", leave.gaps, 1.0),
        ("moved, join: last batch there, first batch here", join.silences, None),
        ("moved, graceful stop: the same", leave.silences, None),
        ("stayed, join: longest from batch to batch", join_stay, None),
        ("stayed, graceful stop: the same", leave_stay, None),
        ("the same partitions before, when nothing moved", calm, None),
    ):
        longest = f"{max(found):.3f}" if bar is None else _coloured(max(found), bar, "")
        table.add_row(
            what, str(len(found)), f"{statistics.median(found):.3f}", f"{_p99(found):.3f}", longest,
            f"< {bar:g}" if bar else "",
        )  # fmt: skip
    console.print(table)
    console.print(
        "Between batches is also that records come once a second, and are polled for once. What a move takes is "
        f"{partitions} commits, claims and first reads at once: mind the load, now {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores."
    )


def moves(old: list[Note], new: list[Note], since: float) -> Moves:
    """What the partitions met that went from `old` to `new` after `since`."""
    gaps, silences = [], []
    for partition, (left, last) in _ends(old, since, "closed").items():
        arrived = [note for note in new if note.partition == partition and note.at >= last]
        opened = next((note.at for note in arrived if note.what == "opened"), None)
        if opened is None:
            continue
        gaps.append(opened - left)
        batch = next((note.at for note in arrived if note.what == "batch"), None)
        if batch is not None:
            silences.append(batch - last)
    return Moves(gaps, silences)


def longest_gaps(notes: list[Note], partitions: Collection[str], since: float, until: float) -> list[float]:
    """The longest time from batch to batch of each partition, as far as it was between the two moments."""
    longest: dict[str, float] = {}
    last: dict[str, float] = {}
    for note in _batches(notes):
        before = last.get(note.partition)
        if note.partition in partitions and before is not None and before < until and note.at > since:
            longest[note.partition] = max(longest.get(note.partition, 0.0), note.at - before)
        last[note.partition] = note.at
    return list(longest.values())


def _ends(notes: list[Note], since: float, what: str) -> dict[str, tuple[float, float]]:
    """Partition -> when it was first closed after `since`, and its last batch before that."""
    found: dict[str, tuple[float, float]] = {}
    last: dict[str, float] = defaultdict(float)
    for note in notes:
        if note.what == "batch" and note.partition not in found:
            last[note.partition] = note.at
        elif note.what == what and note.at >= since:
            found.setdefault(note.partition, (note.at, last[note.partition]))
    return found


def repeats(notes: list[Note]) -> tuple[int, int]:
    """How many records were given to a handler again, and how many there were in all."""
    repeated = handled = 0
    seen: dict[str, int] = defaultdict(lambda: -1)
    for note in sorted(_batches(notes), key=lambda note: note.at):
        handled += note.last - note.first + 1  # sequences of the log are dense
        repeated += max(0, min(note.last, seen[note.partition]) - note.first + 1)
        seen[note.partition] = max(seen[note.partition], note.last)
    return repeated, handled


def _batches(notes: list[Note]) -> Iterator[Note]:
    return (note for note in notes if note.what == "batch")


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def _coloured(value: Any, bar: float, unit: str = "s") -> str:
    text = f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
    return f"[{'green' if value <= bar else 'red'}]{text}[/] {unit}".rstrip()


if __name__ == "__main__":
    run()
