"""A cluster in virtual time: hosts that run a real `Processor` each, over one faulty store, watched by checks."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import structlog

from actorproc.context import PartitionContext
from actorproc.errors import ActorprocError
from actorproc.handler import PartitionHandler
from actorproc.layout import ProcessorLayout
from actorproc.processor import Processor
from actorproc.records import Batch
from actorproc.settings import Settings
from actorproc.store import Store, StoreLimits
from actorproc.stores.memory import Memory
from actorproc.testing.clock import VirtualClock
from actorproc.testing.faults import CALM, Faults, FaultyBackend
from actorproc.testing.group_checks import GroupChecks
from actorproc.testing.ledger import Ledger
from actorproc.testing.loop import Host, SimulationError, current_loop
from actorproc.testing.nudges import Switchboard
from actorproc.testing.output_checks import PartitionChecks
from actorproc.testing.reference import Judge
from actorproc.testing.unsteady_source import UnsteadySource

log = structlog.get_logger(__name__)

RATE = 0.02
"""Share by which the clock of a host may run too fast or too slow."""

OFFSET = 300.0
"""Seconds by which the wall clock of a host may be wrong."""

RESTART = (1.0, 5.0)
"""Seconds after which a host whose process ended with an error is started again."""


class Broken(SimulationError):
    """Something that must hold does not. The message says what, when, and since the first of them nothing else counts."""


@dataclass(slots=True)
class Life:
    """One process of one host, from its start to its end."""

    host: Host
    view: FaultyBackend
    clock: VirtualClock
    processor: Processor | None = None
    stopping: bool = False
    pause: list[float] | None = None
    """When it was paused, and until when; None: it is not."""
    done: anyio.Event = field(default_factory=anyio.Event)


class Cluster:
    """Hosts that share the partitions of `source`, until the simulation ends. Use it within `actorproc.testing.run`.

    Everything that the store takes is checked at once (output, dead letters, checkpoints, members, leases), and so is
    every call of the handler; `run_for` raises what was found.

    Args:
        handler: the handler under test.
        source: the stream; append to it at any time.
        judge: says of each record whether it ended as it should; default: anything goes that is consistent.
        settings: by name, where they should differ from the defaults.
    """

    def __init__(
        self,
        handler: type[PartitionHandler],
        source: UnsteadySource,
        *,
        judge: Judge = lambda _: None,
        faults: Faults = CALM,
        lost_nudges: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        seed: object = 0,
    ) -> None:
        self.source = source
        self.settings = Settings(**(settings or {}))
        self.lives: dict[str, Life] = {}
        """Host -> its latest life."""
        self.events: Counter[str] = Counter()
        """What was done to the hosts, by kind."""
        self._seed = seed
        self._random = Random(f"{seed}/cluster")  # noqa: S311
        self._judge = judge
        self._handler = self._watched(handler)
        self._loop = current_loop()
        self._checks: dict[str, PartitionChecks] = {}
        self._pauses: dict[str, list[list[float]]] = {}
        self._births = 0
        self._broken: list[str] = []
        self._alarm = anyio.Event()
        self.layout = ProcessorLayout("simulated")
        self.group = GroupChecks(
            self.settings.lease_expiration_interval,
            running_since=self._running_since,
            paused_since=self._paused_since,
            broken=self._report,
        )
        truth = Ledger(Memory(clock=VirtualClock("store")), self.layout, self.group, self._checks_of)
        self.store = FaultyBackend(truth, faults, seed=seed)
        self.switchboard = Switchboard(lost=lost_nudges, seed=seed)

    # Hosts

    @property
    def running(self) -> list[str]:
        """Hosts whose process lives and is not paused."""
        return [name for name, life in self.lives.items() if life.host.running and not life.done.is_set()]

    def start(self, name: str) -> None:
        """Start a process on host `name`, whether or not an earlier one lives."""
        self._births += 1
        seed = f"{self._seed}/{name}/{self._births}"
        random = Random(seed)  # noqa: S311
        host = self._loop.host(name, rate=1 + random.uniform(-RATE, RATE), offset=random.uniform(0, 10 * OFFSET))
        clock = VirtualClock(seed, offset=random.uniform(-OFFSET, OFFSET), delay=0.02)
        life = self.lives[name] = Life(host, self.store.view(name), clock)
        host.start(self._live(life), name=f"{name} (process {self._births})")
        self.events["start"] += 1

    def crash(self, name: str) -> None:
        """End the process of `name` as SIGKILL does."""
        life = self.lives[name]
        self._end_pause(life)
        life.host.crash()
        life.done.set()
        self.events["crash"] += 1

    def pause(self, name: str) -> Life:
        """Stop it as SIGSTOP does, until `resume` of what this returns."""
        life = self.lives[name]
        life.host.pause()
        life.pause = [self._loop.now, float("inf")]
        self._pauses.setdefault(name, []).append(life.pause)
        self.events["pause"] += 1
        return life

    def resume(self, life: Life) -> None:
        """Let a paused process go on; nothing happens if it is not paused any more."""
        if life.pause is not None:
            self._end_pause(life)
            life.host.resume()

    def ask_to_stop(self, name: str) -> Life:
        """Send it the likes of SIGTERM. It has stopped when `done` of what this returns is set."""
        life = self.lives[name]
        if not life.stopping:
            life.stopping = True
            self.events["stop"] += 1
            if life.processor is not None:
                life.host.start(life.processor.stop())
        return life

    async def stop(self, name: str, within: float = 300.0) -> None:
        """Ask it to stop, and wait.

        Raises:
            Broken: it did not stop `within` so many seconds.
        """
        life = self.ask_to_stop(name)
        with anyio.move_on_after(within):
            await life.done.wait()
        if not life.done.is_set():
            self._report(f"host {name} did not stop within {within:g} s")
        self.raise_broken()

    # Time

    async def run_for(self, seconds: float) -> None:
        """Let it run.

        Raises:
            Broken: something that must hold does not.
        """
        with anyio.move_on_after(seconds):
            await self._alarm.wait()
        self.raise_broken()

    async def settled(self, within: float) -> float:
        """Run until every partition has one owner among the running hosts, evenly, and all that the source holds now
        is committed. How long that took.

        Raises:
            Broken: it did not happen `within` so many seconds.
        """
        begun, ends = self._loop.now, {p: self.source.last(p) for p in await self.source.partitions()}
        while (why := self._unsettled(ends)) is not None:
            if self._loop.now - begun > within:
                self._report(f"the cluster has not settled within {within:g} s: {why}")
            await self.run_for(1.0)
        return self._loop.now - begun

    async def finished(self) -> None:
        """Stop every host, then check that each record has ended, once.

        Raises:
            Broken: one has not.
        """
        for name in self.running:
            await self.stop(name)
        await self.run_for(100.0)  # late writes land
        for partition in await self.source.partitions():
            self._checks_of(partition).all_ended(self.source.last(partition))
        self.raise_broken()

    def raise_broken(self) -> None:
        if self._broken:
            raise Broken("\n".join(self._broken[:10]))

    def seen(self) -> Counter[str]:
        """What was checked, by kind."""
        return sum((checks.seen for checks in self._checks.values()), self.group.seen)

    def injected(self) -> Counter[str]:
        """What was done to the cluster, by kind: faults of store, source and nudges, and events of hosts."""
        return self.store.injected + self.source.injected + self.switchboard.injected + self.events

    # How

    async def _live(self, life: Life) -> None:
        """The process: what a `main` around a processor would do."""
        settings = self.settings
        limits = StoreLimits(settings.store_timeout, settings.store_patience, settings.store_concurrency)
        store = Store(life.view, limits=limits, clock=life.clock)
        life.processor = Processor(
            self._handler,
            name="simulated",
            host=life.host.name,
            source=self.source,
            container=store,
            settings=settings,
            clock=life.clock,
            nudges=self.switchboard.connect(),
        )
        error: Exception | None = None
        try:
            if not life.stopping:
                await life.processor.run()
        except Exception as raised:  # noqa: BLE001  # whatever ends a process is looked at below
            error = raised
        if self._loop.ending:
            return
        if error is None and not life.stopping:
            self._report(f"host {life.host.name} ended by itself")
        elif error is not None and not isinstance(error, ActorprocError):
            self._report(f"host {life.host.name} ended with {error!r}")
        life.done.set()
        if error is not None:
            log.info("cluster.process_ended", host=life.host.name, error=repr(error))
            self.events[f"ended: {type(error).__name__}"] += 1
            if not life.stopping and self.lives[life.host.name] is life:
                self._loop.call_later(self._random.uniform(*RESTART), self._start_again, life)

    def _start_again(self, life: Life) -> None:
        if self.lives[life.host.name] is life and not life.stopping:
            self.start(life.host.name)

    def _watched(self, handler: type[PartitionHandler]) -> type[PartitionHandler]:
        """The handler, with the checks told of each call."""
        called = self._called

        async def process(self: Any, batch: Batch, ctx: PartitionContext) -> None:
            called(ctx)
            await handler.process(self, batch, ctx)

        def plain_process(self: Any, batch: Batch, ctx: PartitionContext) -> object:
            called(ctx)
            return handler.process(self, batch, ctx)

        chosen = process if inspect.iscoroutinefunction(handler.process) else plain_process
        return type(handler.__name__, (handler,), {"process": chosen})

    def _called(self, ctx: PartitionContext) -> None:
        if not self._loop.ending:
            self.group.handler_called(ctx.host, ctx.partition, ctx.epoch, self._loop.now)

    def _checks_of(self, partition: str) -> PartitionChecks:
        checks = self._checks.get(partition)
        if checks is None:

            def records(after: int, upto: int) -> Any:
                return self.source.records(after, upto, partition)

            checks = self._checks[partition] = PartitionChecks(partition, records, self._judge, self._report)
        return checks

    def _unsettled(self, ends: Mapping[str, int]) -> str | None:
        for partition, end in ends.items():
            if (reached := self._checks_of(partition).committed_to()) < end:
                return f"partition {partition} is committed up to {reached}, not {end}"
        return self.group.unbalanced(set(self.running), set(ends))

    def _report(self, what: str) -> None:
        if not self._loop.ending:
            self._broken.append(f"{what} (at {self._loop.now:.3f} s)")
            log.error("cluster.broken", what=what)
            self._alarm.set()

    def _end_pause(self, life: Life) -> None:
        if life.pause is not None:
            life.pause[1] = self._loop.now
            life.pause = None

    def _paused_since(self, name: str, since: float) -> bool:
        return any(until > since for _, until in self._pauses.get(name, []))

    def _running_since(self, name: str, at: float, seconds: float) -> float:
        """When `name` had run for `seconds` before `at`, pauses not counted."""
        for begin, until in reversed(self._pauses.get(name, [])):
            if begin < at:
                ran = max(0.0, at - until)
                if ran >= seconds:
                    break
                at, seconds = begin, seconds - ran
        return at - seconds
