"""A cluster in virtual time: each host runs a real `Processor` over one faulty store, and every write is checked."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import anyio

from actorproc.admin.resets import PartitionReset
from actorproc.config.settings import Settings
from actorproc.errors import Fenced, VersionRefused
from actorproc.group.format_versions import FORMAT_VERSIONS
from actorproc.group.heartbeat import Incarnation
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.options import load_options
from actorproc.processor import Processor
from actorproc.records import Batch
from actorproc.runtime.logger import get_logger
from actorproc.simulation.at_most_once_checks import AtMostOnceChecks
from actorproc.simulation.checked_store import CheckedStore
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.database import NAME
from actorproc.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend
from actorproc.simulation.group_checks import GroupChecks
from actorproc.simulation.loop import SimulationError, call_outside, current_loop
from actorproc.simulation.nudges import NudgeNetwork
from actorproc.simulation.output_checks import OutputChecks, RecordCheck, TimerRows
from actorproc.simulation.process import Process
from actorproc.simulation.sink_checks import SinkChecks
from actorproc.simulation.split_checks import SplitChecks
from actorproc.simulation.streams import KnownStream
from actorproc.storage.names import ProcessorLayout
from actorproc.stores.memory import MemoryStore

logger = get_logger(__name__)

RATE = 0.02
"""Largest relative error of the rate of a host's clock."""

OFFSET = 300.0
"""Largest error of a host's wall clock, in seconds."""

RESTART = (1.0, 5.0)
"""Seconds after which a process that ended with an error is restarted."""


EXPECTED = (Fenced, VersionRefused)
"""Errors that may end a process: a second process has the same name, or the group writes a format too new for it."""


class NextVersion(Processor):
    """A host of the next version, which also reads a newer format version."""

    format_versions = FORMAT_VERSIONS._replace(highest=FORMAT_VERSIONS.highest + 1)


class InvariantViolation(SimulationError):
    """An invariant does not hold. The message has the invariants and the times; the first one may cause the others."""


class Cluster:
    """Hosts that share the partitions of `source`. Use it within `actorproc.simulation.run`.

    Every write that the store applies (output, dead letters, checkpoints, members, leases) and every call of the
    handler is checked. `run_for`, `converged` and `finished` raise InvariantViolation.

    Args:
        handler: the handler under test.
        source: the stream, such as an `UnsteadySource`. It may grow at any time.
        check: returns the fault in the result of a record, or None. By default any consistent result is right.
        timers: tells the rows of `on_wake` from those of records, and checks them. A handler with timers needs it.
        cleared: called with the partition once a reset has cleared its keyed state.
        settings: those that differ from the defaults, by name.
        sink: options of a simulated database, `sinks.database`, that gets the committed rows. Default: there is none.
    """

    def __init__(
        self,
        handler: type[PartitionHandler],
        source: KnownStream,
        *,
        check: RecordCheck = lambda _: None,
        timers: TimerRows | None = None,
        cleared: Callable[[str], None] = lambda _: None,
        faults: Faults = LATENCY_ONLY,
        lost_nudges: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        options: Mapping[str, object] | None = None,
        sink: Mapping[str, Any] | None = None,
        seed: object = 0,
    ) -> None:
        self.source = source
        self.settings = Settings(**(settings or {}))
        self._at_most_once = self.settings.delivery == "at-most-once"
        self.events: Counter[str] = Counter()
        """Number of events of hosts, by kind."""
        self._seed = seed
        self._random = Random(f"{seed}/cluster")  # noqa: S311
        self._check, self._timers, self._cleared = check, timers, cleared
        load_options(handler, options, alone=True)  # raises here the error that every host would raise
        self._options = options
        self._handler = self._with_checks(handler)
        self._loop = current_loop()
        self._checks: dict[str, OutputChecks] = {}
        self._births = 0
        self.versions: dict[str, type[Processor]] = {}
        """Host -> the version that its next process runs, if it is not this one."""
        self._processes: list[Process] = []
        self._violations: list[str] = []
        self._violation_found = anyio.Event()
        self.layout = ProcessorLayout("simulated")
        self.group = GroupChecks(self.settings.lease_expiration_interval, self.report)
        memory = MemoryStore(clock=VirtualClock("store"), content_tags=self._random.random() < 0.5)
        self._splits = SplitChecks(source, self._checks_of, self.report)
        self.sinks = SinkChecks(self.report, sink, seed=seed) if sink is not None else None
        truth = CheckedStore(memory, self.layout, self.group, self._checks_of, source, self._splits, self.sinks)
        self.store = FaultyBackend(truth, faults, seed=seed)
        source.join(self.store, self.report, lambda partition: self._checks_of(partition).committed_to())
        self.nudge_network = NudgeNetwork(lost=lost_nudges, seed=seed)

    # Hosts

    @property
    def processes(self) -> list[Process]:
        """Processes that have not ended, in the order of their start. Some may be paused."""
        self._processes = [process for process in self._processes if not process.done.is_set()]
        return list(self._processes)

    @property
    def running(self) -> set[str]:
        """Hosts with a process that has not ended and is not paused."""
        return {process.host.name for process in self.processes if process.host.running}

    def start(self, name: str) -> Process:
        """Start a process on host `name`, even if one runs there. It is restarted when it ends with an error."""
        self._births += 1
        seed = f"{self._seed}/{name}/{self._births}"
        random = Random(seed)  # noqa: S311
        host = self._loop.host(name, rate=1 + random.uniform(-RATE, RATE), offset=random.uniform(0, 10 * OFFSET))
        clock = VirtualClock(seed, offset=random.uniform(-OFFSET, OFFSET), delay=0.02)
        process = Process(host, self.store.view(name), clock, self.versions.get(name, Processor))
        if self.sinks is not None:
            process.sinks[NAME] = self.sinks.database.connect()
        self._processes.append(process)
        host.start(self._run(process), name=f"{name} (process {self._births})")
        self.events["start"] += 1
        return process

    def crash(self, process: Process) -> None:
        """End the process as SIGKILL does."""
        self._end_pause(process)
        process.host.crash()
        process.done.set()
        self.events["crash"] += 1

    def pause(self, process: Process) -> None:
        """Stop the process as SIGSTOP does, until `resume`."""
        process.host.pause()
        process.pause = [self._loop.now, float("inf")]
        self.group.paused(process.host.name, process.pause)
        self.events["pause"] += 1

    def resume(self, process: Process) -> None:
        """Continue a paused process. Does nothing if it is not paused."""
        if process.pause is not None:
            self._end_pause(process)
            process.host.resume()

    def ask_to_stop(self, process: Process) -> None:
        """Stop the process as SIGTERM does. `process.done` is set once it has stopped."""
        if not process.stopping:
            process.stopping = True
            self.events["stop"] += 1
            if process.processor is not None:
                process.host.call_soon(process.processor.stop)  # its own clock applies

    async def stop(self, process: Process, within: float = 300.0) -> None:
        """Stop the process as SIGTERM does, and wait for its end.

        Raises:
            InvariantViolation: it did not stop within `within` seconds, or another invariant does not hold.
        """
        self.ask_to_stop(process)
        with anyio.move_on_after(within):
            await process.done.wait()
        if not process.done.is_set():
            self.report(f"host {process.host.name} did not stop within {within:g} s")
        self.raise_violations()

    # Time

    async def run_for(self, seconds: float) -> None:
        """Run the cluster for so many seconds.

        Raises:
            InvariantViolation: an invariant does not hold.
        """
        with anyio.move_on_after(seconds):
            await self._violation_found.wait()
        self.raise_violations()

    async def converged(self, within: float) -> float:
        """Run until the partitions are spread evenly over the running hosts and everything in the source is committed.

        Returns:
            The seconds that it took.

        Raises:
            InvariantViolation: nothing was committed for `within` seconds, or an invariant does not hold.
        """
        begun, ends = self._loop.now, self._splits.expected()
        furthest, moved_at = -1, begun  # a slow handler may have a long way to go after a reset
        while (why := self._not_converged(ends)) is not None:
            done = sum(min(end, self._checks_of(partition).committed_to()) for partition, end in ends.items())
            if done > furthest:
                furthest, moved_at = done, self._loop.now
            if self._loop.now - moved_at > within:
                self.report(f"the cluster has not converged within {within:g} s: {why}")
            await self.run_for(1.0)
        return self._loop.now - begun

    async def finished(self) -> None:
        """Stop all hosts, then check that each record has exactly one result.

        Raises:
            InvariantViolation: a record has none, or another invariant does not hold.
        """
        if self._at_most_once:  # checkpoints are ahead of the handler
            await self.run_for(100.0)
        for process in self.processes:
            await self.stop(process)
        await self.run_for(100.0)  # late writes land
        for partition, last in self._splits.expected().items():
            self._checks_of(partition).all_ended(last)
        if self.sinks is not None:
            self.sinks.all_delivered(self._splits.expected())
        self.raise_violations()

    def expected(self) -> Sequence[str]:
        """Names of the partitions that must be processed: those that are listed, or that the group has known."""
        return list(self._splits.expected())

    def note_durable(self, partition: str, upto: int) -> None:
        """A handler's `ctx.commit` returned: everything up to sequence `upto` must be durable."""
        self.group.seen["promises"] += 1
        if (reached := self._checks_of(partition).was_committed_to()) < upto:
            self.report(f"partition {partition}: ctx.commit said that {upto} is durable, and {reached} is")

    def note_resets(self, command: str, resets: Iterable[PartitionReset]) -> None:
        """A command of an operator returned: the resets that it reports must be in the chains."""
        for reset in resets:
            self.group.seen["reset_reports"] += 1
            if not reset.refusal and not self._checks_of(reset.partition).was_reset_by(command):
                self.report(f"partition {reset.partition}: {command} reports {reset}, which is not in the chain")

    def raise_violations(self) -> None:
        if self._violations:
            raise InvariantViolation("\n".join(self._violations[:10]))

    def seen(self) -> Counter[str]:
        """Number of checks, by kind."""
        seen = sum((checks.seen for checks in self._checks.values()), self.group.seen)
        return seen + self.sinks.seen if self.sinks is not None else seen

    def injected(self) -> Counter[str]:
        """Number of faults of store, source and nudges and of events of hosts, by kind."""
        injected = self.store.injected + self.source.injected + self.nudge_network.injected + self.events
        return injected + self.sinks.database.injected if self.sinks is not None else injected

    # How

    async def _run(self, process: Process) -> None:
        """The main program of the process."""
        process.processor = process.version(
            self._handler,
            name="simulated",
            host=process.host.name,
            source=self.source.read_by(process, self.settings),
            container=process.connect(self.settings),
            settings=self.settings,
            options=self._options,
            clock=process.clock,
            nudges=self.nudge_network.connect(),
            sinks=process.sinks,
        )
        error: Exception | None = None
        try:
            if not process.stopping:
                await process.processor.run()
        except Exception as raised:  # noqa: BLE001  # examined below
            error = raised
        if self._loop.ending:
            return
        if error is None and not process.stopping:
            self.report(f"host {process.host.name} ended by itself")
        elif error is not None and not isinstance(error, EXPECTED):
            self.report(f"host {process.host.name} ended with {error!r}")
        process.done.set()
        if error is not None:
            logger.info("cluster.process_ended", host=process.host.name, error=repr(error))
            self.events[f"ended: {type(error).__name__}"] += 1
            if isinstance(error, VersionRefused):
                self.versions[process.host.name] = NextVersion
            if not process.stopping:
                call_outside(self._random.uniform(*RESTART), self._start_again, process.host.name)

    def _start_again(self, name: str) -> None:
        if not any(process.host.name == name for process in self.processes):
            self.start(name)

    def _with_checks(self, handler: type[PartitionHandler]) -> type[PartitionHandler]:
        """A subclass of the handler that reports its opening, calls and closing to the checks."""
        called, checks_of = self._called, self._checks_of

        async def opened(self: Any, ctx: PartitionInfo) -> None:
            checks_of(ctx.partition).handler_opened(self, ctx)
            await handler.opened(self, ctx)

        async def closing(self: Any, ctx: PartitionInfo, reason: CloseReason) -> None:
            checks_of(ctx.partition).handler_closing(self, reason)
            await handler.closing(self, ctx, reason)

        async def awaited(self: Any, batch: Batch, ctx: PartitionContext) -> None:
            called(self, batch, ctx)
            await handler.process(self, batch, ctx)  # type: ignore[misc]  # an async def

        def plain(self: Any, batch: Batch, ctx: PartitionContext) -> object:
            called(self, batch, ctx)
            return handler.process(self, batch, ctx)

        process = awaited if inspect.iscoroutinefunction(handler.process) else plain
        hooks = {"opened": opened, "closing": closing, "process": process}
        return type(handler.__name__, (handler,), hooks)

    def _called(self, instance: object, batch: Batch, ctx: PartitionContext) -> None:
        if not self._loop.ending:
            self.group.handler_called(ctx.host, ctx.partition, ctx.epoch, self._loop.now)
            self._checks_of(ctx.partition).handler_called(instance, batch)
            self._splits.handler_called(ctx.partition)

    def _checks_of(self, partition: str) -> OutputChecks:
        checks = self._checks.get(partition)
        if checks is None:

            def records(after: int, upto: int) -> Any:
                return self.source.records(after, upto, partition)

            def parents() -> list[OutputChecks]:
                return [self._checks_of(parent) for parent in self.source.parents(partition)]

            checked = partition, records, self._check, self.report, self._timers, self._cleared
            checks = AtMostOnceChecks(*checked, parents) if self._at_most_once else OutputChecks(*checked)
            self._checks[partition] = checks
        return checks

    def _not_converged(self, ends: Mapping[str, int]) -> str | None:
        for partition, end in ends.items():
            if (reached := self._checks_of(partition).committed_to()) < end:
                return f"partition {partition} is committed up to {reached}, not {end}"
        return (
            self._splits.unsettled()
            or self.source.unsettled(ends)
            or self.group.unbalanced(self._lives(), set(ends))
            or (self.sinks.behind(ends) if self.sinks is not None else None)
        )

    def _lives(self) -> set[Incarnation]:
        """The processes that run, as members of the group; one that has only been started is no member yet."""
        return {
            (process.host.name, (process.processor and process.processor.statistics().incarnation) or "")
            for process in self.processes
            if process.host.running
        }

    def report(self, what: str) -> None:
        """An invariant does not hold."""
        if not self._loop.ending:
            self._violations.append(f"{what} (at {self._loop.now:.3f} s)")
            logger.error("cluster.broken", what=what)
            self._violation_found.set()

    def _end_pause(self, process: Process) -> None:
        if process.pause is not None:
            process.pause[1] = self._loop.now
            process.pause = None
