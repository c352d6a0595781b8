"""A process of a simulated host: what runs there, how it reaches the store, and what was done to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from actorproc.config.settings import Settings
from actorproc.processor import Processor
from actorproc.storage.store import Store, StoreLimits
from actorproc.testing.simulation.clock import VirtualClock
from actorproc.testing.simulation.faults import FaultyBackend
from actorproc.testing.simulation.loop import Host


@dataclass(slots=True)
class Process:
    """One process of one host, from its start to its end."""

    host: Host
    view: FaultyBackend
    clock: VirtualClock
    processor: Processor | None = None
    stopping: bool = False
    pause: list[float] | None = None
    """When it was paused, and until when; None: it is not."""
    done: anyio.Event = field(default_factory=anyio.Event)

    def connect(self, settings: Settings) -> Store:
        """The store, as this process sees it."""
        limits = StoreLimits(settings.store_timeout, settings.store_patience, settings.store_concurrency)
        return Store(self.view, limits=limits, clock=self.clock)
