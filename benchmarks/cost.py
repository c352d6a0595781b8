"""Store requests of a group, including the reading of its log, with default timers, in virtual time.

Goal of an idle group: at most 3 requests per host and renew interval, plus one per poll of the source, for any number
of partitions. Prices: those of `actorproc cost`, S3 Standard.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.admin.cost import MONTH, PRICES, Verb
from actorproc.config.settings import Settings
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, FaultyBackend
from actorproc.simulation.loop import current_loop
from actorproc.simulation.loop import run as run_in_virtual_time
from actorproc.simulation.nudges import NudgeNetwork
from actorproc.sources.log import LogSource
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

VERBS: dict[str, Verb] = {"put": "PUT", "put_if_absent": "PUT", "put_if_match": "PUT", "list": "LIST", "get": "GET"}
"""How S3 charges the requests that a store counts. Others are free."""

JITTER = 0.1
"""Share by which timers differ from what is set."""

SETTLING = 300.0
"""Virtual seconds until everything was read, committed and balanced, and the last checkpoint was written."""


class Keep(PartitionHandler):
    """Emits a row per record, so that there is output before it becomes idle."""

    output_schema = "n bigint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.sequence})


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests of all `hosts` over `seconds`, by verb: to the container, and to the log. Without producers."""

    hosts: int
    seconds: float
    running: int
    """Partitions that run."""
    committed: int
    """Files of output, with those that were written before the group became idle."""
    container: Counter[str]
    log: Counter[str]
    producer: Counter[str]
    settings: Settings

    def charged(self) -> Counter[Verb]:
        """All requests, with those of the producer, as S3 charges them."""
        total: Counter[Verb] = Counter()
        for verb, count in (self.container + self.log + self.producer).items():
            if verb in VERBS:
                total[VERBS[verb]] += count
        return total

    @property
    def per_host_and_renewal(self) -> float:
        """Requests to the container per host and renew interval."""
        return self.container.total() / self.hosts / (self.seconds / self.settings.lease_renew_interval)

    @property
    def per_poll(self) -> float:
        """Requests to the log per host and poll interval."""
        return self.log.total() / self.hosts / (self.seconds / self.settings.poll_interval)

    def dollars(self, requests: Counter[str]) -> float:
        """Per host and month."""
        price = sum(PRICES[0].of(VERBS[verb]) * n for verb, n in requests.items() if verb in VERBS)
        return price / self.hosts * MONTH / self.seconds


def measure(partitions: int, hosts: int, intervals: int, records: float = 0.0) -> Counted:
    """A group over so many renew intervals, after everything in its log was processed.

    Args:
        records: that are appended per second meanwhile, at random times. 0: an idle group.
    """
    return run_in_virtual_time(_measure(partitions, hosts, intervals, records))


async def _measure(partitions: int, hosts: int, intervals: int, records: float) -> Counted:
    settings = Settings()
    world = VirtualClock("world")
    truth = MemoryStore(clock=world)
    container = MemoryStore(clock=world)
    log = FaultyBackend(truth, LATENCY_ONLY) if records else truth
    appended = Store(log, clock=world)
    async with Producer(appended, partitions=partitions, partitioner="round-robin", clock=world) as producer:
        await producer.send_many([b"{}"] * (3 * partitions))
    board, processors, tasks, stores = NudgeNetwork(), [], [], []
    for index in range(hosts):
        clock = VirtualClock(index)
        stores.append((Store(container, clock=clock), Store(log, clock=clock)))
        processor = Processor(
            Keep, name="cost", host=f"host-{index}", container=stores[-1][0],
            source=LogSource(stores[-1][1], clock=clock),
            settings=settings, clock=clock, nudges=board.connect(),
        )  # fmt: skip
        processors.append(processor)
        tasks.append(current_loop().host(processor.host).start(processor.run()))
    await anyio.sleep(SETTLING)
    before = [(store.requests.copy(), source.requests.copy()) for store, source in stores]
    seconds = intervals * settings.lease_renew_interval
    appended.requests.clear()
    if records:
        await _append(appended, partitions, records, seconds)
    else:
        await anyio.sleep(seconds)
    states = [p.state for processor in processors if (s := processor.statistics()) for p in s.partitions]
    counted = Counted(
        hosts, seconds, states.count("running"), len((await container.list("cost/output/")).entries),
        sum((store.requests - was[0] for (store, _), was in zip(stores, before, strict=True)), Counter()),
        sum((source.requests - was[1] for (_, source), was in zip(stores, before, strict=True)), Counter()),
        appended.requests, settings,
    )  # fmt: skip
    for processor in processors:  # else each would be cancelled, and say so
        processor.stop()
    for task in tasks:
        await task
    return counted


async def _append(log: Store, partitions: int, records: float, seconds: float) -> None:
    """Append so many records per second, at random times, to random partitions."""
    clock = VirtualClock("producer")
    give_up = clock.monotonic() + seconds
    async with Producer(log, partitioner=lambda *_: clock.random.randrange(partitions), clock=clock) as producer:
        while (now := clock.monotonic()) < give_up:
            await anyio.sleep(min(give_up - now, clock.random.expovariate(records)))
            await producer.send(b"{}")


def run(intervals: int = 200) -> None:
    """Print the table."""
    console = Console()
    settings = Settings()
    table = Table(title=f"requests of an idle group, over {intervals} renew intervals")
    for heading in ("partitions", "hosts", "put", "get", "list", "all", "bar", "log", "bar", "$ group", "$ polls"):
        table.add_column(heading, justify="right")
    for partitions in (8, 2_000):
        for hosts in (1, 3):
            with console.status(f"{partitions:,} partitions, {hosts} hosts"):
                idle = measure(partitions, hosts, intervals)
            share = idle.per_host_and_renewal / idle.container.total()
            table.add_row(
                f"{partitions:,}", str(hosts),
                *(f"{idle.container[verb] * share:.2f}" for verb in ("put", "get", "list")),
                _coloured(idle.per_host_and_renewal, 3), "<= 3",
                _coloured(idle.per_poll, 1 + JITTER), f"1 +- {JITTER:g}",
                f"{idle.dollars(idle.container):.2f}", f"{idle.dollars(idle.log):.2f}",
            )  # fmt: skip
    console.print(table)
    console.print(
        f"put, get, list, all: to the container, per host and renew interval ({settings.lease_renew_interval:g} s). "
        f"log: to the log's store, per host and poll ({settings.poll_interval:g} s, jittered). $: per host and month. "
        "It grows with hosts and timers, not with partitions; poll_interval = 5 divides the price of the polls by five."
    )


def _coloured(value: float, bar: float) -> str:
    return f"[{'green' if value <= bar else 'red'}]{value:.2f}[/]"


if __name__ == "__main__":
    run()
