"""`python -m tests.chaos`: runs chaos by hand and for the suite. Exit code 0: all checks passed; 1: one failed."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import anyio
from rich.console import Console

from tests.chaos.archive import Archive
from tests.chaos.operators import Operators
from tests.chaos.outages import Outage, Outages, TroubledServer
from tests.chaos.place import STORES, Place, opened_place
from tests.chaos.run import PROCESSOR, Beside, Orders, Report, run
from tests.chaos.show import Screen, show_report
from tests.chaos.sinks import SETTINGS, SinkTrouble
from tests.chaos.target_servers import TARGETS
from tests.connectors.amqp.servers import AmqpBroker
from tests.servers import Unavailable

QUEUES = ("artemis", "broker-j")


def main() -> int:
    """Run as the arguments say; the exit code."""
    given = _arguments()
    broker = given.source != "log"
    slow = (
        given.store != "folder" or given.spark is not None or given.sinks is not None or broker
    )  # which needs its share of the machine
    rate, pace = given.rate or (300 if slow else 600), given.pace or (2.0 if slow else 0.8)
    few = broker or given.spark is not None or given.sinks is not None
    hosts, partitions = given.hosts or (3 if few else 10), given.partitions or (6 if few else 32)
    seed = random.randrange(10**6) if given.seed is None else given.seed
    folder = Path(given.folder or tempfile.mkdtemp(prefix="actorproc-chaos-")).absolute()
    console = Console(highlight=False)
    producers = 1 if given.source in QUEUES else 2  # one alone: so the order of a queue is known
    orders = Orders(given.seconds, hosts, partitions, producers, rate=rate, pace=pace, seed=seed, upgrade=given.upgrade)
    console.print(f"chaos on {given.store}, seed {seed}, in {folder}", soft_wrap=True)
    screen = Screen(console)

    async def play() -> Report:
        store = "seaweedfs" if given.store == "s3" else given.store
        async with opened_place(store, folder, given.source, partitions) as opened:
            place = _with_archive(opened) if given.sinks else opened
            with screen.live(), ExitStack() as stack:
                beside = await _spark(given, place, random.Random(seed), screen.say, stack)
                if given.operators:
                    operators = Operators(place, PROCESSOR, orders.partitions, random.Random(seed), screen.say)
                    beside.append(stack.enter_context(operators))
                if given.sinks:
                    names, draw = given.sinks.split(","), random.Random(seed)
                    trouble = SinkTrouble(names, place, PROCESSOR, draw, screen.say, stack)
                    beside.append(stack.enter_context(trouble.watched()))
                beside += _beside_broker(given, orders, place, random.Random(seed), screen.say, stack)
                return await run(orders, place, screen.say, screen.show, beside)

    try:
        report = anyio.run(play)
    except KeyboardInterrupt:
        console.print(f"interrupted; everything is ended, {folder} stays")
        return 130
    except Unavailable as reason:
        console.print(f"skipped: {reason}")
        return 77
    show_report(console, report)
    if report.faults:
        console.print(f"[bold red]BROKEN:[/] {len(report.faults)} faults, seed {seed}; everything stays in {folder}")
        return 1
    more = ", and once more for each reset that repeats it" if given.operators else ""
    console.print(f"[bold green]HELD:[/] every record of the log ended exactly once{more} (seed {seed})")
    if not (given.keep or given.folder):
        shutil.rmtree(folder)
    return 0


async def _spark(
    given: argparse.Namespace, place: Place, draw: random.Random, say: Callable[[str], None], stack: ExitStack
) -> list[Beside]:
    """The Spark half, if it is asked for, until `stack` is closed."""
    if given.spark is None:
        return []
    from tests.chaos.driver import Job  # imported here, because every process of the run would import it
    from tests.chaos.drivers import Drivers
    from tests.chaos.way_back import WayBack
    from tests.spark.cluster import cluster

    master = stack.enter_context(cluster(place.folder / "cluster")) if given.cluster else "local[2,4]"
    back = f"{place.log}-back" if given.back else None
    job = Job(place.container, PROCESSOR, place.folder / "table", master, given.spark == "native", back, given.plant)
    beside: list[Beside] = [stack.enter_context(Drivers(job, place, draw, say))]
    if back is not None:
        hosts = stack.enter_context(WayBack(back, place, draw))
        await hosts.open()
        beside.append(hosts)
    return beside


def _with_archive(place: Place) -> Place:
    """The place of a run whose output is trimmed."""
    archive = Archive(Path(place.container), PROCESSOR, place.folder / "archive")
    return replace(place, archive=archive, keywords={**place.keywords, **SETTINGS})


def _beside_broker(
    given: argparse.Namespace,
    orders: Orders,
    place: Place,
    draw: random.Random,
    say: Callable[[str], None],
    stack: ExitStack,
) -> list[Beside]:
    """Trouble for the broker, and the processor that forwards its topic, if the log is one."""
    if place.broker is None:
        return []
    killed = Outage(place.broker.stop, place.broker.start)
    outages = Outages(TroubledServer("the broker", {"killed": killed}), draw, say)
    if isinstance(place.broker, AmqpBroker):
        return [outages]
    from tests.chaos import forwarding, topic

    brokers = place.broker.address
    topic.create(brokers, place.topic, orders.partitions)
    topic.create(brokers, forwarding.TARGET, 4)
    forwards = stack.enter_context(
        forwarding.Forwarding(place, brokers, place.log, draw, say, transactions=not given.no_transactions)
    )
    return [outages, forwards]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=["s3", *STORES], default="folder", help="s3 is seaweedfs")
    parser.add_argument(
        "--source", choices=["log", "kafka", *QUEUES], default="log",
        help="the log is a topic, or queues of one of these brokers, and the broker is killed, too; a second processor "
        "forwards the topic to another one",
    )  # fmt: skip
    parser.add_argument(
        "--no-transactions", action="store_true", help="forward without transactions: at least once, copies named"
    )
    parser.add_argument("--seconds", type=float, default=120, help="of trouble (%(default)s)")
    parser.add_argument("--hosts", type=int, help="10; with Spark, Kafka or sinks 3")
    parser.add_argument("--partitions", type=int, help="32; with Spark, Kafka or sinks 6")
    parser.add_argument(
        "--spark", choices=["source", "native"], help="a stream of the output into a table, killed, too"
    )
    parser.add_argument("--operators", action="store_true", help="pause, drain, move and reset meanwhile")
    parser.add_argument(
        "--sinks", nargs="?", const=",".join(TARGETS), help=f"sinks follow the processor: {','.join(TARGETS)}, or some"
    )
    parser.add_argument("--upgrade", action="store_true", help="replace hosts of an earlier version meanwhile")
    parser.add_argument("--back", action="store_true", help="and from Spark into a log that a second processor reads")
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster of two workers")
    parser.add_argument(
        "--plant", choices=["careless", "forgetful"], help="a fault in the Spark half, which the check must find"
    )
    parser.add_argument("--seed", type=int, help="of the trouble; processes have wills of their own all the same")
    parser.add_argument("--rate", type=float, help="records a second (600 on a folder, else 300)")
    parser.add_argument("--pace", type=float, help="mean seconds between two strikes (0.8 on a folder, else 2)")
    parser.add_argument("--folder", help="to work in, and to keep; must be empty or new")
    parser.add_argument("--keep", action="store_true", help="keep the folder even if everything held")
    given = parser.parse_args()
    if given.spark is None and (given.cluster or given.back or given.plant):
        parser.error("--cluster, --back and --plant go with --spark")
    if given.spark == "native" and given.store != "folder":
        parser.error("--spark native goes with --store folder: for S3 Spark needs jars")
    if given.sinks and given.store != "folder":
        parser.error("--sinks goes with --store folder: files that a trim deletes are kept by links")
    if given.operators and given.source not in ("log", "kafka"):
        parser.error("--operators goes with --source log or kafka: what a queue has acknowledged is gone")
    if given.no_transactions and given.source != "kafka":
        parser.error("--no-transactions goes with --source kafka")
    if given.source != "log" and given.spark is not None:
        parser.error("--source goes without --spark")
    return given


if __name__ == "__main__":
    sys.exit(main())
