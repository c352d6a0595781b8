"""From a topic of a real Kafka broker to durable rows: actorproc against other Python libraries. Needs Java and Maven.

Every program reads the same JSON events of about 130 bytes (lz4), parses them, keeps three columns and makes them
durable. The others write Parquet by hand, sync it, and commit their offsets afterwards: at least once, or not at all
after a crash. actorproc's output is exactly once. Quix Streams' own exactly-once goes into a topic.

Each program runs in a process of its own, on one core; the broker may use the others. The clock runs from the first
event (actorproc: from before it) to the last durable row. Medians. `same settings`: with the librdkafka properties that
actorproc sets, where a library takes them; `ratio`: to the best of the other libraries in either column.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actorproc.sources.kafka.properties import DEFAULTS
from benchmarks.backlog import json_events
from benchmarks.kafka_programs.environment import python_of_peers
from benchmarks.kafka_programs.task import Task
from tests.kafka_server import Broker, kafka

PARTITIONS = 4
TOPIC = "events"
TUNED = {name: DEFAULTS[name] for name in ("fetch.queue.backoff.ms", "queued.min.messages")}
_LONGEST = 600.0  # seconds for a program
_ATTEMPTS = count()


@dataclass(frozen=True, slots=True)
class Program:
    """A module of `kafka_programs`.

    Attributes:
        share: of the events; less than all for what would take minutes.
        tunable: whether it takes librdkafka properties.
        bar: the lowest ratio to the best peer; None: it is a peer, or a loop by hand.
    """

    title: str
    module: str
    variant: str = ""
    share: float = 1.0
    tunable: bool = False
    bar: float | None = None

    @property
    def is_ours(self) -> bool:
        return self.module == "ours"

    @property
    def is_peer(self) -> bool:
        return self.module not in ("ours", "raw")


PROGRAMS = (
    Program("(confluent_kafka by hand, consume only)", "raw", "consume", tunable=True),
    Program("(confluent_kafka by hand, Parquet)", "raw", "parquet", tunable=True),
    Program("Bytewax, no recovery", "bytewax", tunable=True),
    Program("Quix Streams, at least once", "quix", tunable=True),
    Program("Quix Streams, exactly once into a topic", "quix", "exactly-once", 0.5, tunable=True),
    Program("FastStream, batches", "faststream", tunable=True),
    Program("aiokafka", "aiokafka"),
    Program("Faust", "faust", share=0.05),
    Program("actorproc, ctx.emit of dicts", "ours", "emit", bar=4.0),
    Program("actorproc, RecordHandler[Event], tuples", "ours", "typed", bar=4.0),
    Program("actorproc, JsonRows", "ours", "rows", bar=7.0),
    Program("actorproc, columns", "ours", "columns", bar=7.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Median events per second, seconds of CPU per event, and the highest peak of memory in bytes."""

    speed: float
    cpu: float
    memory: int


def fill(broker: Broker, events: int) -> None:
    """Make the topic, with the events spread evenly over its partitions."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    properties = {"compression.type": "lz4", "linger.ms": 50, "queue.buffering.max.messages": 10**6}
    producer = Producer({"bootstrap.servers": broker.address, **properties})
    values = json_events()
    for i in range(events):
        producer.produce(TOPIC, values[i % len(values)], partition=i % PARTITIONS)
        if i % 1_000 == 0:
            producer.poll(0)
    producer.flush()


def measure(program: Program, task: Task, folder: Path, rounds: int, console: Console) -> Measured:
    """Run the program `rounds` times, each from the beginning of the topic."""
    task = replace(task, events=int(task.events * program.share) // PARTITIONS * PARTITIONS, variant=program.variant)
    reports = []
    for _ in track(range(rounds), program.title, console=console, transient=True):
        attempt = replace(task, out=str(folder / f"{program.module}-{next(_ATTEMPTS)}"))
        reports.append(_run(program, attempt))
    speed, cpu = (statistics.median(report[key] for report in reports) for key in ("seconds", "cpu"))
    return Measured(task.events / speed, cpu / task.events, int(max(report["memory"] for report in reports)))


def _run(program: Program, task: Task) -> dict[str, float]:
    python = Path(sys.executable) if program.is_ours else python_of_peers()
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, str(python), "-m", f"benchmarks.kafka_programs.{program.module}", task.argument]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=_LONGEST)
    reports = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if done.returncode or not reports:
        raise ChildProcessError(f"{program.title} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    report: dict[str, float] = json.loads(reports[-1])
    return report


def run(events: int = 1_000_000, rounds: int = 3, only: str = "") -> None:
    """Print the table. `only`: programs whose title contains it."""
    console = Console()
    python_of_peers()
    programs = [program for program in PROGRAMS if only in program.title]
    found: dict[Program, tuple[Measured, Measured | None]] = {}
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        with kafka(folder) as broker:
            fill(broker, events)
            task = Task(broker.address, TOPIC, PARTITIONS, events, "")
            for program in programs:  # those with the same settings are run right after
                plain = measure(program, task, folder, rounds, console)
                tuned = replace(task, properties=TUNED)
                same = measure(program, tuned, folder, rounds, console) if program.tunable else None
                found[program] = plain, same
                console.print(
                    f"{program.title}: {plain.speed:,.0f} {f'{same.speed:,.0f}' if same else ''}", style="dim"
                )
    console.print(table_of(found, events, rounds))


def table_of(found: dict[Program, tuple[Measured, Measured | None]], events: int, rounds: int) -> Table:
    peers = [one.speed for program, both in found.items() if program.is_peer for one in both if one is not None]
    table = Table(title=f"{events:,} events, {PARTITIONS} partitions, one core, median of {rounds}")
    for heading in ("", "events/s", "same settings", "ratio", "bar", "CPU per event", "peak memory"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for program, (plain, same) in found.items():
        best = max((one for one in (plain, same) if one is not None), key=lambda one: one.speed)
        ratio = best.speed / max(peers) if peers else 0.0
        colour = "" if program.bar is None else f"[{'green' if ratio >= program.bar else 'red'}]"
        table.add_row(
            program.title,
            f"{plain.speed:,.0f}",
            f"{same.speed:,.0f}" if same else "",
            f"{colour}{ratio:.2f}",
            f">= {program.bar:g}" if program.bar else "",
            f"{best.cpu * 1e9:,.0f} ns",
            f"{best.memory / 2**20:,.0f} MiB",
        )
    return table
