"""Watches a processor by its container: leases from the group, commits from the output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from actorproc.group.assignment import Lease
from actorproc.group.membership import read_group
from actorproc.output.chain import Commit, OutputChain
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


@dataclass(slots=True)
class Watcher:
    """Follows a processor from outside. `look` refreshes all fields."""

    store: Store
    layout: ProcessorLayout
    partitions: Sequence[str]
    members: frozenset[str] = frozenset()
    leases: dict[str, Lease] = field(default_factory=dict)
    chains: defaultdict[str, list[Commit]] = field(default_factory=lambda: defaultdict(list))
    """Commits by partition."""
    commits: Counter[str] = field(default_factory=Counter)
    """By host."""
    records: Counter[str] = field(default_factory=Counter)
    """Committed records by host."""

    async def look(self) -> None:
        """Read the group and the new commits."""
        group = await read_group(self.store, self.layout)
        if group is not None:
            self.members, self.leases = frozenset(group.members), dict(group.leases)
        for partition in self.partitions:
            await self._follow(partition)

    async def _follow(self, partition: str) -> None:
        chain = self.chains[partition]
        output = OutputChain(self.store, self.layout, partition)
        while (commit := await output.read(len(chain))) is not None:
            before = chain[-1].totals.records if chain else 0
            self.commits[commit.host] += 1
            self.records[commit.host] += commit.totals.records - before
            chain.append(commit)

    def owned(self, host: str) -> list[str]:
        """Partitions whose lease `host` holds, in order."""
        return [p for p in self.partitions if p in self.leases and self.leases[p].owner == host]

    def shared_by(self, hosts: Sequence[str]) -> bool:
        """Whether these hosts are the members, their counts differ by at most one, and no lease is moving."""
        counts = [len(self.owned(host)) for host in hosts]
        at_rest = all(lease.next is None for lease in self.leases.values())
        return (
            self.members == set(hosts)
            and sum(counts) == len(self.partitions)
            and at_rest
            and max(counts) - min(counts) <= 1
        )

    def last_committer(self, partition: str) -> str | None:
        """The host that made the newest commit of `partition`."""
        chain = self.chains[partition]
        return chain[-1].host if chain else None

    @property
    def committed(self) -> int:
        """Records committed, over all partitions."""
        return sum(self.records.values())

    @property
    def dead_letters(self) -> int:
        return sum(chain[-1].totals.dead_letters for chain in self.chains.values() if chain)
