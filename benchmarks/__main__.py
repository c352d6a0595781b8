"""`python -m benchmarks [NAME...]`: runs the benchmarks, each in a process of its own."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.processes import in_own_process


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module of this package with a `run`. `quick`: arguments of `run` for a first impression."""

    about: str
    quick: dict[str, Any] = field(default_factory=dict)


BENCHMARKS = {
    "latency": Benchmark("from sent to the handler, through two processors, and to a committed row", {"seconds": 10.0}),
    "bars": Benchmark(
        "speed by record and memory against the best other library and the bare loop: each bar, reached or missed",
        {"events": 200_000, "own_events": 100_000, "rounds": 1},
    ),
    "speed": Benchmark("events per second of each way of writing a handler", {"events": 100_000, "rounds": 3}),
    "compression": Benchmark("codecs of the log: speed and bytes", {"events": 100_000, "rounds": 2}),
    "produce": Benchmark("events per second of `actorproc produce`", {"events": 100_000, "rounds": 3}),
    "decode": Benchmark("events per second of each format of `decode`", {"events": 50_000, "rounds": 3}),
    "state": Benchmark(
        "keyed state with up to three million keys",
        {"sizes": (10_000, 100_000), "events": 100_000, "keys": 10_000, "rounds": 1},
    ),
    "state_restore": Benchmark("a restore of a million keys from S3: requests, bytes, seconds", {"sizes": (20_000,)}),
    "state_handoff": Benchmark("the gap in which a partition with 100,000 keys moves", {"rounds": 1}),
    "state_failures": Benchmark(
        "records that fail in a handler with keyed state and a slow service", {"records": 500, "rounds": 1}
    ),
    "workers": Benchmark("the same with one worker process and with two", {"events": 500_000, "rounds": 1}),
    "cost": Benchmark("store requests and dollars of an idle group", {"intervals": 20}),
    "start": Benchmark("10,000 partitions on one host: start, idle, memory", {"partitions": 2_000, "idle_seconds": 5}),
    "rebalance": Benchmark("a second host joins 256 busy partitions, and leaves", {"partitions": 64}),
    "takeover": Benchmark("a host is killed: seconds until its partitions run again", {"seeds": 3}),
    "metrics": Benchmark("what scraping costs a host", {"events": 400_000, "rounds": 2}),
    "memory": Benchmark("memory of a host against the length of its backlog", {"events": 2_000_000}),
    "sinks": Benchmark(
        "rows to PostgreSQL, beside the bare client loop; latency", {"rows": 100_000, "rounds": 1, "seconds": 5}
    ),
    "kafka": Benchmark("from a Kafka topic to durable rows, against other libraries", {"events": 200_000, "rounds": 1}),
    "kafka_takeover": Benchmark(
        "one of four hosts on a topic is killed: gaps of the others", {"window": 30, "expiration": 15}
    ),
    "eventhubs": Benchmark(
        "from a hub over AMQP to durable rows, beside Microsoft's processor", {"events": 20_000, "rounds": 1}
    ),
    "eventhubs_takeover": Benchmark(
        "one of two hosts on a hub is killed, beside Microsoft's processor; idle requests", {"rounds": 1}
    ),
    "kinesis": Benchmark(
        "from a stream of Kinesis to durable rows, beside KCL and async-kinesis", {"events": 20_000, "rounds": 1}
    ),
    "kinesis_takeover": Benchmark(
        "one of two hosts on a stream of Kinesis is killed, beside KCL and async-kinesis", {"rounds": 1}
    ),
    "spark.scan": Benchmark("a full scan: native, the data source, well-sized files", {"rows": 400_000, "rounds": 3}),
    "spark.trigger": Benchmark("a trigger on 100,000 files with 100 new ones", {"files": 10_000, "rounds": 3}),
    "spark.throughput": Benchmark("rows per second from emit to a table", {"events": 200_000, "rounds": 1}),
    "spark.latency": Benchmark("seconds from sent to in a table, at 10,000 rows/s", {"seconds": 15, "rounds": 1}),
}


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which, or `spark` for all `spark.*`; default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes: minutes become seconds, figures rough.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Only say what there is.")] = False,
) -> None:
    """Measure this machine: tables with the bars that they should meet."""
    if not sys.stdout.isatty():
        os.environ.setdefault("COLUMNS", "120")  # whole tables in a file, too
    console = Console()
    if listing:
        table = Table("name", "what it measures", box=None)
        for name, benchmark in BENCHMARKS.items():
            table.add_row(name, benchmark.about)
        console.print(table)
        return
    chosen = []
    for wanted in names or ("",):
        found = [name for name in BENCHMARKS if not wanted or name == wanted or name.startswith(f"{wanted}.")]
        if not found:
            raise typer.BadParameter(f"{wanted}: choose from {', '.join(BENCHMARKS)}")
        chosen += found
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        console.rule(f"[bold]{name}[/], load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        console.print(inspect.getdoc(module), style="dim", markup=False)
        in_own_process(module.run, **(BENCHMARKS[name].quick if quick else {}))


if __name__ == "__main__":
    typer.run(main)
