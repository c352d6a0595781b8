"""Nudges between simulated hosts, with delays and losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random

from actorproc.runtime.nudge import Nudges
from actorproc.simulation.loop import Host, SimulationError, call_outside, current_host

LATENCY = 0.02  # seconds, at most


class NudgeNetwork:
    """Delivers nudges between the hosts of a simulation.

    Args:
        lost: share of the nudges that are lost, 0 to 1.
    """

    def __init__(self, *, lost: float = 0.0, seed: object = 0) -> None:
        self.lost = lost
        self.injected: Counter[str] = Counter()
        self._random = Random(f"{seed}/nudges")  # noqa: S311
        self.listeners: dict[str, tuple[Host, Callable[[], None]]] = {}
        self.addresses = count(1)

    def connect(self) -> Nudges:
        """The `Nudges` of one host."""
        return _SimulatedNudges(self)

    def carry(self, address: str) -> None:
        """Deliver a nudge, or lose it."""
        sender = current_host()
        if sender is not None and not sender.alive:
            return
        if self._random.random() < self.lost:
            self.injected["lost_nudge"] += 1
            return
        call_outside(self._random.uniform(0, LATENCY), self._arrive, address)

    def _arrive(self, address: str) -> None:
        if listener := self.listeners.get(address):
            host, on_nudge = listener
            host.call_soon(on_nudge)


class _SimulatedNudges(Nudges):
    def __init__(self, network: NudgeNetwork) -> None:
        self._network = network

    async def open(self, on_nudge: Callable[[], None]) -> None:
        host = current_host()
        if host is None:
            raise SimulationError("only a simulated host can listen")
        self.address = f"{host.name}:{next(self._network.addresses)}"
        self._network.listeners[self.address] = host, on_nudge

    async def close(self) -> None:
        self._network.listeners.pop(self.address or "", None)
        self.address = None

    def send(self, address: str) -> None:
        self._network.carry(address)
