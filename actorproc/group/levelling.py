"""Levels loads: finds the leases to move from heavy hosts to light ones, in a time of about n log n."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_STEPS = 8
"""Steps per lease after which a plan is good enough. The next plan goes on from there."""


class Load(NamedTuple):
    """A lease that may move."""

    weight: int
    partition: str
    owner: str | None
    """The live host that runs it."""


class Step(NamedTuple):
    """A lease that goes to another host."""

    load: Load
    source: str
    target: str


def steps(totals: Mapping[str, int], movable: Mapping[str, Iterable[Load]]) -> Iterator[Step]:
    """The steps after which no lease could go to another host and leave the old one heavier than the new one.

    Each step takes the lease that halves the difference best from the heaviest host that has one, to the lightest host.
    It lowers the sum of the squares of the totals, so the steps end. Their number is bounded all the same.

    Args:
        totals: host -> weight of all its leases.
        movable: the same hosts -> their leases that may move.
    """
    hosts = {host: _Host(host, totals[host], loads) for host, loads in movable.items()}
    lightest = [(host.total, name) for name, host in hosts.items()]
    heaviest = [(-host.total, name) for name, host in hosts.items()]
    heapq.heapify(lightest)
    heapq.heapify(heaviest)
    left = _STEPS * sum(host.count for host in hosts.values())
    while heaviest and left:
        negative, name = heaviest[0]
        least, to = lightest[0]
        source, target = hosts[name], hosts[to]
        if target.total != least:  # an entry from before its last step
            heapq.heappop(lightest)
        elif source.total != -negative or not source.has_below(source.total - target.total):
            # The lightest host only gets heavier: what is too heavy to move stays so, until its host is a target.
            heapq.heappop(heaviest)
        else:
            load = source.take(source.total - target.total)
            target.add(load)
            for host in (source, target):
                heapq.heappush(lightest, (host.total, host.name))
                heapq.heappush(heaviest, (-host.total, host.name))
            yield Step(load, name, to)
            left -= 1


class _Host:
    """The leases that may move from one host: a heap for each weight."""

    def __init__(self, name: str, total: int, loads: Iterable[Load]) -> None:
        self.name = name
        self.total = total
        self.count = 0
        self._weights: list[int] = []  # in ascending order
        self._heaps: dict[int, list[tuple[bool, str, Load]]] = {}
        for load in loads:
            self._push(load)

    def has_below(self, weight: int) -> bool:
        return bool(self._weights) and self._weights[0] < weight

    def add(self, load: Load) -> None:
        self._push(load)
        self.total += load.weight

    def take(self, gap: int) -> Load:
        """Remove the lease whose move leaves the least of a gap to another host.

        Of equal ones, one that has not arrived here goes first: to send it elsewhere costs no second move.
        """
        weight = min(self._nearest(gap), key=lambda weight: (abs(gap - 2 * weight), self._heaps[weight][0]))
        load = heapq.heappop(self._heaps[weight])[-1]
        if not self._heaps[weight]:
            del self._heaps[weight], self._weights[bisect_left(self._weights, weight)]
        self.total -= weight
        self.count -= 1
        return load

    def _nearest(self, gap: int) -> list[int]:
        """The weights on both sides of half a gap."""
        above = bisect_left(self._weights, gap / 2)
        return self._weights[max(0, above - 1) : above + 1]

    def _push(self, load: Load) -> None:
        if load.weight not in self._heaps:
            insort(self._weights, load.weight)
            self._heaps[load.weight] = []
        heapq.heappush(self._heaps[load.weight], (load.owner == self.name, load.partition, load))
        self.count += 1
