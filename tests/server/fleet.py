"""A store as a fleet leaves it: heartbeats, group, and reports of many partitions. No host runs."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.history import SAMPLES, Life, encode_history
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import HostReport, PartitionReport, RetryReport, TimesReport
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

NAME = "Flights"
LIFE = "0000000000000001-f3-3600s"


def report(number: int, now: float, **changes: Any) -> PartitionReport:
    fields: dict[str, Any] = {
        "epoch": 3, "state": "running", "since": int(now) - 900, "origin": "it had no owner",
        "sequence": 10_000 + number, "lag": number % 7 * 100, "lag_seconds": number % 7 * 1.5,
        "totals": (10_000, 9_000, number % 3), "last_commit": int(now) - 3, "activity": "handle",
        "activity_since": int(now), "times": TimesReport(1.5, 500.0, 12.5),
    }  # fmt: skip
    return PartitionReport(**fields | changes)


def retrying(now: float) -> PartitionReport:
    retry = RetryReport(10_004, 40, 3, int(now) + 30)
    return report(3, now, trouble="retrying", trouble_since=int(now) - 60, retry=retry, activity="wait")


class FakeFleet:
    """`hosts` hosts with `partitions` partitions in a folder, written as hosts write them.

    Partition 3 retries, partition 5 is stuck, and partition 7 is about to move.

    Args:
        ended: partitions that have ended.
    """

    def __init__(self, folder: Path, hosts: int = 2, partitions: int = 16, ended: Collection[str] = ()) -> None:
        self.container = str(folder)
        self.hosts = [f"host-{n:02}" for n in range(hosts)]
        self.partitions = [str(n) for n in range(partitions)]
        self.ended = ended
        self._beats = 0

    def owner(self, partition: str) -> str:
        return self.hosts[int(partition) % len(self.hosts)]

    async def write(self, hosts: list[str] | None = None, **changes: Any) -> None:
        """The group, and a heartbeat of each host. `changes`: of all reports."""
        self._beats += 1
        layout = ProcessorLayout(NAME)
        async with open_store(self.container, Settings()) as store:
            now = store.clock.wall()
            leases = {name: Lease(self.owner(name), 3) for name in self.partitions}
            leases["7"] = leases["7"]._replace(next=self.hosts[0])
            leases |= {name: Lease(None, 3, closed="ended") for name in self.ended}
            group = GroupDocument.of({host: Member(LIFE) for host in self.hosts}, leases, put_id="g")
            await store.put(layout.group, group.to_json())
            for host in self.hosts if hosts is None else hosts:
                own = [name for name in self.partitions if self.owner(name) == host and name not in self.ended]
                progress = {name: report(int(name), now, **changes) for name in own}
                failing: dict[str, str] = {}
                if "3" in own:
                    progress["3"], failing["3"] = retrying(now), "tries 40 records from 10004 on again: Lost: 503"
                if "5" in own:
                    stuck = {"trouble": "stuck", "trouble_since": int(now) - 120}
                    progress["5"], failing["5"] = report(5, now, **stuck), "PartitionStuck: no progress for 300 s"
                beat = Heartbeat(
                    host, LIFE, None, 1, now - 900, now, self._beats,
                    HostReport(partitions=len(own), progress=progress, failing=failing, max_process_time=300.0),
                )  # fmt: skip
                await store.put(layout.host(host, LIFE), beat.to_json())

    async def write_history(self, hours: float = 24.0) -> None:
        """The histories of the hosts. Half of them started two hours ago, with another version."""
        layout = ProcessorLayout(NAME)
        async with open_store(self.container, Settings()) as store:
            now = store.clock.wall()
            for number, host in enumerate(self.hosts):
                new = 2 * number >= len(self.hosts)
                life = Life(
                    host=host, started=now - 7_200 + number if new else now - 3_600 * hours, interval=300.0,
                    release="0.2.0" if new else "0.1.0", app_version="e83c516" if new else "a1b2c3d",
                )  # fmt: skip
                body = encode_history(life, self._samples(host, now, hours))
                await store.put(layout.history_file(host, f"{number:016x}"), body)

    def _samples(self, host: str, now: float, hours: float) -> pa.Table:
        own = [name for name in self.partitions if self.owner(name) == host]
        rows, begun = [], now // 300 * 300  # the present step is not shown before it is over
        for step in range(int(hours * 12), 0, -1):
            rush = max(0.0, math.sin(step / 30)) ** 3
            for name in own:
                late = int(name) % 7 * rush
                trouble = "stuck" if name == "5" and step <= 3 else "retrying" if late > 5.8 else None
                rows.append((int(begun - 300 * step + 60) * 1000, name, int(900 * late), int(3_000 + 2_000 * rush),
                             int(late > 5.9), trouble))  # fmt: skip
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SAMPLES, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SAMPLES)
