"""From a topic of a real Kafka broker to durable rows: actorproc against other Python libraries. Needs Java and Maven.

Every program reads the same JSON events of about 130 bytes (lz4), parses them, keeps three columns and makes them
durable. The others write Parquet by hand, sync it, and commit their offsets afterwards: at least once, or not at all
after a crash. actorproc's output is exactly once. Quix Streams' own exactly-once goes into a topic. The two programs
that forward send each message unchanged to another topic, in transactions of about 10,000 messages.

Each program runs in a process of its own, on one core; the broker may use the others. The clock runs from the first
event (actorproc: from before it) to the last durable row. Medians. `same settings`: with the librdkafka properties that
actorproc sets, where a library takes them. `best peer`: against the best of the other libraries in either column.
`by hand`: against the best loop by hand that does the same work, into Parquet or into a topic; the bars are for this
ratio, and those of the benchmark `speed`.
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

from actorproc.connectors.kafka.properties import DEFAULTS
from benchmarks.backlog import json_events
from benchmarks.kafka_programs.environment import python_of_peers
from benchmarks.kafka_programs.task import Task
from tests.connectors.kafka.server import Broker, kafka

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
        hand: names the loop by hand that does the same work, by its variant.
        bar: the lowest ratio to that loop.
    """

    title: str
    module: str
    variant: str = ""
    share: float = 1.0
    tunable: bool = False
    hand: str = "parquet"
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
    Program("(confluent_kafka by hand, forward in transactions)", "raw", "forward", tunable=True),
    Program("Bytewax, no recovery", "bytewax", tunable=True),
    Program("Quix Streams, at least once", "quix", tunable=True),
    Program("Quix Streams, exactly once into a topic", "quix", "exactly-once", 0.5, tunable=True),
    Program("FastStream, batches", "faststream", tunable=True),
    Program("aiokafka", "aiokafka"),
    Program("Faust", "faust", share=0.05),
    Program("actorproc, ctx.emit of dicts", "ours", "emit", bar=0.65),
    Program("actorproc, ctx.decode_lists of dicts", "ours", "lists", bar=0.7),
    Program("actorproc, RecordHandler[Event], tuples", "ours", "typed", bar=0.75),
    Program("actorproc, JsonRows", "ours", "rows", bar=0.8),
    Program("actorproc, columns", "ours", "columns", bar=0.8),
    Program("actorproc, KafkaForwarder", "ours", "forward", hand="forward"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Median events per second, seconds of CPU per event, and the highest peak of memory in bytes."""

    speed: float
    cpu: float
    memory: int


def fill(broker: Broker, events: int, keys: int = 0) -> None:
    """Make the topic, with the events spread evenly over its partitions, and over `keys` keys if there are any."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    properties = {"compression.type": "lz4", "linger.ms": 50, "queue.buffering.max.messages": 10**6}
    producer = Producer({"bootstrap.servers": broker.address, **properties})
    values = json_events()
    for i in range(events):
        key = b"key-%d" % (i % keys) if keys else None
        producer.produce(TOPIC, values[i % len(values)], key=key, partition=i % PARTITIONS)
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
    best = {program: max(filter(None, both), key=lambda one: one.speed) for program, both in found.items()}
    peers = [one.speed for program, one in best.items() if program.is_peer]
    hands = {program.variant: one.speed for program, one in best.items() if program.module == "raw"}
    table = Table(title=f"{events:,} events, {PARTITIONS} partitions, one core, median of {rounds}")
    for heading in ("", "events/s", "same settings", "best peer", "by hand", "bar", "CPU per event", "peak memory"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for program, (plain, same) in found.items():
        speed, hand = best[program].speed, hands.get(program.hand)
        by_hand = "" if hand is None or not program.is_ours else _against(speed / hand, program.bar)
        table.add_row(
            program.title,
            f"{plain.speed:,.0f}",
            f"{same.speed:,.0f}" if same else "",
            f"{speed / max(peers):.2f}" if peers and program.is_ours and program.bar else "",
            by_hand,
            f">= {program.bar:g}" if program.bar else "",
            f"{best[program].cpu * 1e9:,.0f} ns",
            f"{best[program].memory / 2**20:,.0f} MiB",
        )
    return table


def _against(ratio: float, bar: float | None) -> str:
    colour = "" if bar is None else "[green]" if ratio >= bar else "[red]"
    return f"{colour}{ratio:.2f}"
