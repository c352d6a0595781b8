"""One process on a simulated host."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from actorproc.config.settings import Settings
from actorproc.processor import Processor
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.database import SimulatedSink
from actorproc.simulation.faults import FaultyBackend
from actorproc.simulation.loop import Host
from actorproc.storage.store import Store, StoreLimits


@dataclass(slots=True)
class Process:
    """A process, from its start to its end."""

    host: Host
    view: FaultyBackend
    clock: VirtualClock
    version: type[Processor] = Processor
    """The processor as the version of this process has it."""
    processor: Processor | None = None
    sinks: dict[str, SimulatedSink] = field(default_factory=dict)
    """By name."""
    stopping: bool = False
    pause: list[float] | None = None
    """Start and end of the current pause; None if it is not paused."""
    done: anyio.Event = field(default_factory=anyio.Event)

    def connect(self, settings: Settings) -> Store:
        """The store, as this process reaches it."""
        limits = StoreLimits(settings.store_timeout, settings.store_patience, settings.store_concurrency)
        return Store(self.view, limits=limits, clock=self.clock)
