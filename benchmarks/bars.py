"""Speed by record, and memory: each bar, reached or missed. Needs Java and Maven.

From Kafka: the programs of the benchmark `kafka`, in turn on one topic of a real broker, events per second against the
best of the other libraries in its fastest form; and the highest peak of memory. From the built-in log: the handlers of
the benchmark `speed` against the bare loop, without start and stop. Medians. `of CPU` is the same ratio of CPU times,
which tells more while others use the machine.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.kafka import PARTITIONS, PROGRAMS, TOPIC, TUNED, Measured, Program, fill, measure
from benchmarks.kafka_programs.environment import python_of_peers
from benchmarks.kafka_programs.task import Task
from benchmarks.processes import in_own_process
from benchmarks.speed import CASES, in_turns, make_log, pinned, without_ends
from tests.connectors.kafka.server import kafka

KAFKA_BARS = {"typed": 1.15, "emit": 0.8, "lists": 0.95, "columns": 1.25, "rows": 1.25}
"""By variant of our program: the lowest share of the best peer's speed."""

MEMORY_BAR = 320
"""MiB."""

LOG_BARS = {"ctx.emit of dicts": 0.68, "RecordHandler[Event], tuples": 0.9, "JsonRows": 0.97}
"""By title of the case: the lowest share of the bare loop's speed."""

_FAST_PEERS = ("aiokafka", "faststream")


@dataclass(frozen=True, slots=True)
class Row:
    """A bar and what was measured. `cpu`: the ratio of CPU times, if there is one."""

    what: str
    measured: str
    cpu: float | None
    bar: str
    reached: bool


def run(events: int = 1_000_000, own_events: int = 400_000, rounds: int = 5) -> None:
    """Print the table."""
    console = Console()
    rows = [*from_kafka(events, rounds, console), *in_own_process(from_log, own_events, rounds)]
    table = Table(title=f"{events:,} events from Kafka, {own_events:,} from the log, one core, median of {rounds}")
    for heading in ("", "measured", "of CPU", "bar", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        verdict = "[green]reached" if row.reached else "[red]missed"
        table.add_row(row.what, row.measured, "" if row.cpu is None else f"{row.cpu:.2f}", row.bar, verdict)
    console.print(table)


def from_kafka(events: int, rounds: int, console: Console) -> list[Row]:
    """Each bar of the programs that read from Kafka."""
    python_of_peers()
    programs = [one for one in PROGRAMS if one.module in _FAST_PEERS or (one.is_ours and one.variant in KAFKA_BARS)]
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name, kafka(Path(name)) as broker:
        fill(broker, events)
        task = Task(broker.address, TOPIC, PARTITIONS, events, "")
        found: dict[Program, list[Measured]] = {program: [] for program in programs}
        for _ in range(rounds):
            for program, measured in found.items():
                given = replace(task, properties=TUNED) if program.tunable else task
                measured.append(measure(program, given, Path(name), 1, console))
    medians = {program: _median(measured) for program, measured in found.items()}
    for program, one in medians.items():
        console.print(
            f"{program.title}: {one.speed:,.0f} events/s, {one.cpu * 1e9:,.0f} ns of CPU, {one.memory / 2**20:,.0f} MiB"
        )
    title, best = max(
        ((program.title, one) for program, one in medians.items() if program.is_peer), key=lambda peer: peer[1].speed
    )
    rows = []
    for program, one in medians.items():
        if program.is_ours:
            ratio, bar = one.speed / best.speed, KAFKA_BARS[program.variant]
            what = f"{program.title}, against {title}"
            rows.append(Row(what, f"{ratio:.2f}", best.cpu / one.cpu, f">= {bar:g}", ratio >= bar))
    peak = max(one.memory for program, one in medians.items() if program.is_ours) / 2**20
    return [*rows, Row("highest peak of memory", f"{peak:,.0f} MiB", None, f"<= {MEMORY_BAR}", peak <= MEMORY_BAR)]


def _median(measured: list[Measured]) -> Measured:
    """Median speed and CPU, and the highest peak."""
    speed, cpu = statistics.median(one.speed for one in measured), statistics.median(one.cpu for one in measured)
    return Measured(speed, cpu, max(one.memory for one in measured))


def from_log(events: int, rounds: int) -> list[Row]:
    """Each bar of the handlers that read from the built-in log. Pins this process to one core."""
    pinned()
    rows, console = [], Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        log, short = folder / "log", folder / "short"
        anyio.run(make_log, log, events)
        anyio.run(make_log, short, PARTITIONS)
        for case in CASES:
            if (bar := LOG_BARS.get(case[0])) is not None:
                turns = in_turns(case, log, short, folder, rounds, console)
                ratio = without_ends(turns)
                what = f"{case[0]} from the log, against the bare loop"
                rows.append(Row(what, f"{ratio:.2f}", without_ends(turns, 1), f">= {bar:g}", ratio >= bar))
    return rows
