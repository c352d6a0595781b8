"""A host is killed: how long its partitions have no host, with the default timers, in virtual time.

Nothing is measured on this machine: the virtual clock says when each partition runs again. A host is dead when its
heartbeat has not changed for `lease_expiration_interval`, so that setting decides. A graceful stop is measured in real
time by `rebalance`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import anyio
from rich.console import Console
from rich.table import Table

from actorproc import Batch, PartitionContext, PartitionHandler
from actorproc.simulation import Cluster, Process, UnsteadySource
from actorproc.simulation import run as run_in_virtual_time

SETTLING = 120.0  # virtual seconds until the group is balanced
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "defaults": {},
    "expire 20 s": {"lease_renew_interval": 4, "lease_acquire_interval": 5, "lease_expiration_interval": 20},
    "expire 5 s": {"lease_renew_interval": 1, "lease_acquire_interval": 1, "lease_expiration_interval": 5},
}


class Nothing(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        pass


def measure(settings: Mapping[str, float], partitions: int, hosts: int, seed: int) -> list[float]:
    """Seconds without a host for each partition of a host that is killed."""
    return run_in_virtual_time(_measure(settings, partitions, hosts, seed), seed=seed)


async def _measure(settings: Mapping[str, float], partitions: int, hosts: int, seed: int) -> list[float]:
    cluster = Cluster(Nothing, UnsteadySource(partitions), settings=settings, seed=seed)
    processes = [cluster.start(f"host-{index}") for index in range(hosts)]
    await cluster.run_for(SETTLING)
    victim, others = processes[0], processes[1:]
    waiting = set(_running([victim]))
    cluster.crash(victim)
    began, gaps = anyio.current_time(), []
    while waiting:
        await anyio.sleep(0.05)
        back = waiting & set(_running(others))
        gaps += [anyio.current_time() - began] * len(back)
        waiting -= back
    for process in cluster.processes:
        cluster.crash(process)
    return gaps


def _running(processes: list[Process]) -> Iterator[str]:
    for process in processes:
        supervisor = process.processor.statistics() if process.processor else None
        if supervisor is not None:
            yield from (found.partition for found in supervisor.partitions if found.state == "running")


def run(partitions: int = 64, hosts: int = 4, seeds: int = 20) -> None:
    """Print the table."""
    console = Console()
    table = Table(title=f"one of {hosts} hosts is killed, {partitions} partitions, {seeds} seeds")
    for heading in ("timers", "median s", "longest s"):
        table.add_column(heading, justify="right")
    for name, settings in SETTINGS.items():
        with console.status(name):
            gaps = [gap for seed in range(seeds) for gap in measure(settings, partitions, hosts, seed)]
        table.add_row(name, f"{statistics.median(gaps):.1f}", f"{max(gaps):.1f}")
    console.print(table)


if __name__ == "__main__":
    run()
