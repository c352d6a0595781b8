"""The scenario of a seed: periods of faults, after each of which the cluster must settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from zlib import crc32

import anyio

from actorproc.errors import StoreError
from actorproc.handler.state import TIMERS
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.dead_letters import letter_files, purge
from actorproc.runtime.clock import SYSTEM
from actorproc.state.reading import read_state
from actorproc.storage.names import LOG_HINTS, partition_of
from actorproc.storage.store import Store
from actorproc.testing.simulation.clock import EPOCH, VirtualClock
from actorproc.testing.simulation.cluster import Cluster, InvariantViolation, NextRelease
from actorproc.testing.simulation.faults import LATENCY_ONLY, Faults
from actorproc.testing.simulation.log_stream import LOG_FILES, LogStream
from actorproc.testing.simulation.loop import START, call_outside, current_loop, run, start_outside
from actorproc.testing.simulation.operators import Operators
from actorproc.testing.simulation.process import Process
from actorproc.testing.simulation.queue_stream import QueueStream
from actorproc.testing.simulation.reference_records import CountCheck, reference_value
from actorproc.testing.simulation.streams import KnownStream, UnsteadySource
from actorproc.testing.simulation.styles import STYLES, Style
from actorproc.testing.simulation.timer_checks import TimerCheck

HEAVY_FAULTS = Faults(slow=0.02, lost_request=0.01, lost_reply=0.01, late_write=0.01, busy=0.001)

TROUBLE = (600.0, 1_500.0)
"""Length of a period of faults, in seconds. None is longer than the whole run is to be."""

BETWEEN = (2.0, 60.0)
"""Seconds between two faults."""

GRACE = 200.0
"""Seconds after which a host that does not stop is killed, as orchestrators do."""

SETTLING = 420.0
"""Seconds after the last fault within which the cluster must settle: a dead host is noticed (60), the survivors
rebalance (2 x 19), leases move (5 + 30 + 17), hanging requests time out (60), failed partitions restart (60), and a
position without rows is committed (60)."""

FIRED = 60.0
"""Seconds after the last record within which every timer fires that is due, also one that fails twice."""

LANDED = 100.0
"""Seconds after the last fault within which every late write is applied."""

SETTINGS = {"partition_refresh_interval": 60, "dead_letter_limit": 1, "poll_interval": 4}

PRODUCERS = ("producer-a", "producer-b")

STREAMS = {
    "log": "the built-in log, with producers",
    "splits": "partitions that split, merge and are forgotten",
    "positions": "partitions with positions",
    "queues": "queues of a broker that delivers again what was not acknowledged",
}
"""Kinds of streams."""

_FATES = ("lost_request", "late_write", "lost_reply")


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one seed. `settled`: seconds that the cluster took to settle after each period of faults."""

    seed: int
    style: str
    stream: str
    seconds: float
    injected: Counter[str]
    seen: Counter[str]
    settled: list[float]
    fingerprint: int


def simulate(
    seed: int,
    *,
    hours: float = 0.5,
    hosts: int = 5,
    partitions: int = 6,
    style: str | None = None,
    stream: str | None = None,
    operators: bool | None = None,
) -> Result:
    """Run one seed for about `hours` hours of virtual time.

    Args:
        style: style of the handler, one of `STYLES`; chosen by the seed by default.
        stream: kind of the stream, one of `STREAMS`; chosen by the seed by default.
        operators: whether they pause, move, drain and reset; in half of the seeds by default.

    Raises:
        InvariantViolation: an invariant does not hold.
        SimulationError: the program cannot go on, or a task does not end.
        ExceptionGroup: a task failed, and nothing awaited it.
    """
    style = style or list(STYLES)[seed % len(STYLES)]
    stream = stream or stream_of(seed)
    if operators is None:
        operators = Random(f"{seed}/acts").random() < 0.5  # noqa: S311
    return run(_Scenario.play(seed, hours, hosts, partitions, style, stream, operators), seed=seed)


def stream_of(seed: int) -> str:
    """The kind of stream that this seed reads: each one in turn, spread over all styles."""
    return list(STREAMS)[(seed % len(STYLES) + seed // len(STYLES)) % len(STREAMS)]


def _count_check(style: Style, stream: KnownStream) -> CountCheck | None:
    if style.wakes:
        return TimerCheck(style.check, stream, idle="stream_idle_time" not in style.settings)
    return CountCheck(style.check, stream.parents) if style.counts else None


class _Scenario:
    def __init__(self, seed: int, hosts: int, partitions: int, style: str, stream: str, operators: bool) -> None:
        self._random = Random(f"{seed}/scenario")  # noqa: S311
        self._memory = UnsteadySource(partitions, seed=seed)
        self._queues = QueueStream(partitions, seed=seed) if stream == "queues" else None
        self._source = self._queues or self._memory
        self._log = LogStream(partitions, reference_value, seed=seed) if stream == "log" else None
        self._style = STYLES[style]
        most = Random(f"{seed}/batches").choice([10, 50, 10_000])  # noqa: S311
        floors = Random(f"{seed}/floors")  # noqa: S311
        windows = Random(f"{seed}/windows")  # noqa: S311
        settings = {
            **SETTINGS,
            "commit_interval": self._random.choice([2, 8, 20]),
            "max_batch_records": most,
            "min_batch_records": floors.choice([1, 1, 7, min(most, 100)]),
            "max_batch_wait": floors.choice([0.5, 10]),
            "max_unacknowledged": windows.choice([10, 60, 1000]),
            **self._style.settings,
        }

        def durable(partition: str, upto: int) -> None:
            self._cluster.note_durable(partition, upto)

        handler = self._style.handler
        self._counts = _count_check(self._style, self._log or self._source)
        self._cluster = Cluster(
            type(handler.__name__, (handler,), {**self._style.traits, "durable": staticmethod(durable)}),
            self._log or self._source,
            check=self._counts or self._style.check,
            timers=self._counts if isinstance(self._counts, TimerCheck) else None,
            cleared=self._counts.cleared if self._counts else lambda _: None,
            settings=settings,
            seed=seed,
        )
        self._operators = Operators(self._cluster, seed=seed) if operators else None
        self._most = hosts + 2
        self._partitions, self._most_partitions = partitions, partitions + 3
        self._wanted = [f"host-{number}" for number in range(hosts)]
        self._named = hosts
        self._splits = 0
        self._flowing = True
        # Faults and their relative frequency.
        self._troubles = {
            self._crash: 14,
            self._pause: 20,
            self._fail_in_a_commit: 24,
            self._stop: 12,
            self._join: 6,
            self._leave: 6,
            self._start_a_second: 3,
            self._cut: 8,
            self._cut_heartbeat: 6,
            self._cut_group: 10,
            self._outage: 4,
            self._set_the_clock: 3,
            self._purge: 3,
            self._upgrade: 6,
            self._install_this_release: 1,
        }
        if self._log is None:
            self._troubles |= {self._add_a_partition: 2}
            if stream == "splits":
                self._troubles |= {self._split: 8, self._merge: 4, self._split_at_once: 3}
            if self._queues is not None:
                self._troubles |= {self._drop_a_consumer: 12, self._drop_in_a_commit: 12, self._restart_the_broker: 3}
        else:
            self._troubles |= {
                self._crash_a_producer: 8,
                self._pause_a_producer: 6,
                self._fail_in_an_append: 16,
                self._cut_heads: 4,
            }

    @classmethod
    async def play(
        cls, seed: int, hours: float, hosts: int, partitions: int, style: str, stream: str, operators: bool
    ) -> Result:
        scenario, loop = cls(seed, hosts, partitions, style, stream, operators), current_loop()
        cluster, until = scenario._cluster, START + hours * 3600
        await scenario._begin()
        settled = []
        while loop.now < until:
            await scenario._trouble(longest=hours * 3600)
            if loop.now >= until:  # so that the last record arrives during faults
                scenario._end_the_flow()
            await scenario._heal()
            await scenario._append_good_records()
            settled.append(await cluster.settled(within=SETTLING))
        scenario._end_the_flow()
        await scenario._await_late_writes()
        await scenario._append_good_records()
        await cluster.settled(within=SETTLING)
        if scenario._style.wakes:
            await cluster.run_for(FIRED)
        await cluster.finished()
        await scenario._check_state()
        seen = cluster.seen() + (scenario._log.seen if scenario._log else Counter())
        injected = cluster.injected()
        return Result(seed, style, stream, loop.now - START, injected, seen, settled, loop.fingerprint)

    async def _begin(self) -> None:
        if self._log is None:
            start_outside(self._feed())
        else:
            await self._log.create()
            for name in PRODUCERS:
                self._log.start(name)
        for name in self._wanted:
            self._cluster.start(name)

    def _end_the_flow(self) -> None:
        self._flowing = False
        if self._log is not None:
            self._log.end()

    async def _await_late_writes(self) -> None:
        """Wait until no append to the log is in flight."""
        if self._log is not None:
            while self._log.processes:
                await self._cluster.run_for(10)
            await self._cluster.run_for(LANDED)

    async def _check_state(self) -> None:
        """Compare the state that everybody can read with the counts in the rows."""
        if self._counts is None:
            return
        store = Store(self._cluster.store.view("reader"), clock=VirtualClock("reader"))
        for partition in self._cluster.expected():
            state = await read_state(store, self._cluster.layout, partition)
            if wrong := self._counts.wrong_state(partition, dict(state.items("counts"))):
                raise InvariantViolation(f"partition {partition}: the state has {wrong}, and its rows say otherwise")
            if isinstance(self._counts, TimerCheck) and (
                why := self._counts.wrong_timers(partition, dict(state.items(TIMERS)))
            ):
                raise InvariantViolation(f"partition {partition} {why}")

    async def _append_good_records(self) -> None:
        """Append a good record, later than all others, that makes timers due.

        Without auto_commit only the handler commits, and not after a failure.
        """
        if self._cluster.settings.auto_commit and not self._style.wakes:
            return
        for partition in self._source.open_names() if self._log is None else self._log.names():
            values = [reference_value(self._random, "row")]
            if self._log is None:
                self._append(partition, values, lag=0)
            else:
                await self._log.append(partition, values)

    async def _feed(self) -> None:
        """Append records in bursts with quiet periods between them."""
        pick = self._random
        while True:
            quiet = pick.random() < 0.02
            await SYSTEM.sleep(pick.uniform(30, 200) if quiet else pick.uniform(0, 4))
            if not self._flowing:
                return
            partition = pick.choice(list(self._source.open_names()))
            self._append(partition, [reference_value(pick) for _ in range(pick.randint(1, 20))])

    def _append(self, partition: str, values: list[bytes], lag: int = 30) -> None:
        """Append records whose timestamps are up to `lag` seconds behind, and not in order."""
        if self._queues is not None:
            self._queues.append(partition, values)
            return
        now = EPOCH + current_loop().now
        for value in values:
            behind = crc32(value) % lag if lag else 0
            self._memory.append(partition, [value], timestamp=datetime.fromtimestamp(now - behind, UTC))

    async def _trouble(self, longest: float) -> None:
        pick, loop = self._random, current_loop()
        late, lateness = pick.choice([0, 0.01, 0.05]), pick.choice([(1.0, 20.0), (1.0, 20.0), (5.0, 90.0)])
        self._cluster.store.faults = replace(HEAVY_FAULTS, late_write=late, lateness=lateness)
        self._source.failing = pick.choice([0, 0.0005])
        self._cluster.nudge_network.lost = pick.choice([0, 0.1, 1])
        until = loop.now + min(longest, pick.uniform(*TROUBLE))
        if self._operators is not None:
            self._operators.at_work = True
        while loop.now < until:
            pick.choices(list(self._troubles), list(self._troubles.values()))[0]()
            await self._cluster.run_for(pick.uniform(*BETWEEN))

    async def _heal(self) -> None:
        cluster = self._cluster
        cluster.store.faults, cluster.nudge_network.lost, self._source.failing = LATENCY_ONLY, 0.0, 0.0
        for process in [*cluster.processes, *self._producing()]:
            cluster.resume(process)
            process.view.heal()
            process.view.interfere = None
        for name in self._wanted:
            self._revive(name)
        for name in PRODUCERS:
            self._revive(name)
        if self._operators is not None:
            await self._operators.withdraw()

    def _producing(self) -> list[Process]:
        return self._log.processes if self._log else []

    # Faults

    def _some(self, processes: list[Process] | None = None) -> Process | None:
        processes = self._cluster.processes if processes is None else processes
        running = [process for process in processes if process.host.running and not process.stopping]
        return self._random.choice(running) if running else None

    def _revive(self, name: str) -> None:
        if name in PRODUCERS and self._log is not None:
            self._log.start(name)
        elif name in self._wanted and not any(process.host.name == name for process in self._cluster.processes):
            self._cluster.start(name)

    def _later(self, least: float, most: float, call: Callable[[], object]) -> None:
        call_outside(self._random.uniform(least, most), call)  # in the world, as a host's own timers pause with it

    def _crash(self, processes: list[Process] | None = None) -> None:
        if process := self._some(processes):
            self._cluster.crash(process)
            self._later(0, 150, partial(self._revive, process.host.name))

    def _pause(self, processes: list[Process] | None = None) -> None:
        if process := self._some(processes):
            self._cluster.pause(process)
            self._later(2, 200, partial(self._cluster.resume, process))

    def _fail_in_a_commit(self) -> None:
        """The next commit of a host fails, and the host pauses or crashes at that moment."""
        if process := self._some():
            process.view.interfere = partial(self._fail, process, self._cluster.layout.output)

    def _fail(self, process: Process, prefix: str, verb: str, key: str) -> str | None:
        if not key.startswith(prefix) or verb in ("get", "list") or not process.host.running:
            return None
        process.view.interfere = None
        name, lot = process.host.name, self._random.random()
        if lot < 0.4:
            self._cluster.crash(process)
            self._later(0, 5, partial(self._revive, name))  # its restart frees its leases at once
        else:
            self._cluster.pause(process)
            if lot < 0.7 or name in PRODUCERS:
                self._later(2, 200, partial(self._cluster.resume, process))
            else:  # when it wakes up, a second process has taken over its work
                self._later(0, 5, partial(self._cluster.start, name))
                self._later(10, 60, partial(self._cluster.resume, process))
        return self._random.choice(_FATES)

    def _stop(self) -> None:
        if process := self._some():
            start_outside(self._stop_or_kill(process))

    async def _stop_or_kill(self, process: Process) -> None:
        self._cluster.ask_to_stop(process)
        with anyio.move_on_after(GRACE):
            await process.done.wait()
        if not process.done.is_set():
            self._cluster.crash(process)
        await SYSTEM.sleep(self._random.uniform(0, 60))
        self._revive(process.host.name)

    def _upgrade(self) -> None:
        """Stop a host, and start it again with the next release."""
        behind = [process for process in self._cluster.processes if process.release is not NextRelease]
        if process := self._some(behind):
            self._cluster.releases[process.host.name] = NextRelease
            self._cluster.events["upgrade"] += 1
            start_outside(self._stop_or_kill(process))

    def _install_this_release(self) -> None:
        """The next process of a host runs this release, even if the group has gone on to the next one."""
        self._cluster.releases.pop(self._random.choice(self._wanted), None)

    def _join(self) -> None:
        if len(self._wanted) < self._most:
            self._named += 1
            self._wanted.append(f"host-{self._named}")
            self._revive(self._wanted[-1])

    def _leave(self) -> None:
        process = self._some()
        if process and process.host.name in self._wanted and len(self._wanted) > 2:
            self._wanted.remove(process.host.name)
            if self._random.random() < 0.5:
                self._cluster.crash(process)
            else:
                start_outside(self._stop_or_kill(process))

    def _start_a_second(self) -> None:
        """Start a second process of a host while the first one runs or is paused."""
        if process := self._some():
            if self._random.random() < 0.5:
                self._cluster.pause(process)
                self._later(2, 200, partial(self._cluster.resume, process))
            self._cluster.start(process.host.name)

    def _cut(self) -> None:
        if process := self._some():
            process.view.cut(self._random.uniform(5, 150))

    def _cut_heartbeat(self) -> None:
        """A host can do everything but renew, so others take its leases while it works."""
        if process := self._some():
            process.view.cut(self._random.uniform(30, 200), prefix=self._cluster.layout.hosts)

    def _cut_group(self) -> None:
        """A host renews and works but cannot read the group, so its leases are taken by force."""
        if process := self._some():
            process.view.cut(self._random.uniform(60, 200), prefix=self._cluster.layout.group)

    def _outage(self) -> None:
        self._cluster.store.outage(self._random.uniform(1, 90))

    def _set_the_clock(self) -> None:
        if process := self._some():
            process.clock.offset += self._random.choice([-3600.0, -1.0, 1.0, 3600.0])
            self._cluster.events["clock_set"] += 1

    def _add_a_partition(self) -> None:
        if self._partitions < self._most_partitions:
            self._source.add_partition(str(self._partitions))
            self._partitions += 1
            self._cluster.events["new_partition"] += 1

    # Partitions that end

    def _split(self) -> None:
        """A partition splits in two."""
        if self._has_room():
            self._follow([self._random.choice(self._memory.open_names())], 2)

    def _merge(self) -> None:
        """Two partitions become one."""
        if len(names := self._memory.open_names()) > 2:
            self._follow(self._random.sample(names, 2), 1)

    def _split_at_once(self) -> None:
        """A partition comes and splits before all hosts have listed it."""
        if self._has_room():
            self._splits += 1
            self._memory.add_partition(name := f"s{self._splits}")
            self._append(name, [reference_value(self._random) for _ in range(5)])
            self._later(0, 70, lambda: self._follow([name], 1))

    def _follow(self, parents: list[str], count: int) -> None:
        """End these partitions; others follow them. Some are not listed any more then, and later forgotten."""
        if not set(parents) <= set(self._memory.open_names()) or not self._flowing:
            return
        if not self._cluster.settings.auto_commit:  # as for `_append_good_records`
            for parent in parents:
                self._append(parent, [reference_value(self._random, "row")])
        names = [f"{parents[0]}-next"] if count == 1 else [f"{parents[0]}a", f"{parents[0]}b"]
        for name in names:
            self._memory.add_partition(name, parents=parents)
        self._cluster.events["split" if len(parents) == 1 else "merge"] += 1
        for parent in parents:
            lot = self._random.random()
            if lot < 0.6:
                self._later(0, 100, partial(self._memory.unlist, parent))
            if lot < 0.3:
                self._later(*((0, 20) if lot < 0.15 else (100, 600)), partial(self._forget, parent))

    def _forget(self, partition: str) -> None:
        self._memory.forget(partition)
        self._cluster.events["forgotten"] += 1

    def _has_room(self) -> bool:
        return len(self._memory.open_names()) < self._most_partitions

    def _purge(self) -> None:
        """An operator purges all dead letters that may be purged."""
        start_outside(self._purge_letters())

    async def _purge_letters(self) -> None:
        cluster = self._cluster
        store = Store(cluster.store.view("operator"), clock=VirtualClock(f"operator/{current_loop().now}"))
        with suppress(StoreError):
            for key in await letter_files(store, cluster.layout):
                checkpoint = await read_checkpoint(store, cluster.layout, partition_of(key))
                if checkpoint is not None:
                    await purge(store, key, below=checkpoint.number)

    # Faults of queues

    def _drop_a_consumer(self) -> None:
        if self._queues is not None:
            self._queues.drop_consumer(self._random.choice(list(self._queues.names())))

    def _drop_in_a_commit(self) -> None:
        """A host loses its consumers at the moment of its next commit."""
        if process := self._some():
            process.view.interfere = partial(self._lose_consumers, process)

    def _lose_consumers(self, process: Process, verb: str, key: str) -> None:
        layout = self._cluster.layout
        if self._queues is not None and verb.startswith("put") and key.startswith((layout.output, layout.checkpoints)):
            process.view.interfere = None
            self._later(0, 0.1, partial(self._queues.drop_consumers_of, process.host))

    def _restart_the_broker(self) -> None:
        if self._queues is not None:
            self._queues.restart(self._random.uniform(1, 60))

    # Faults of producers

    def _crash_a_producer(self) -> None:
        self._crash(self._producing())

    def _pause_a_producer(self) -> None:
        self._pause(self._producing())

    def _fail_in_an_append(self) -> None:
        """The next append of a producer fails, and the producer pauses, crashes or is cut off at that moment."""
        if process := self._some(self._producing()):
            process.view.interfere = partial(self._fail_append, process)

    def _fail_append(self, process: Process, verb: str, key: str) -> str | None:
        if self._random.random() < 0.5:
            return self._fail(process, LOG_FILES, verb, key)
        if not key.startswith(LOG_FILES) or verb != "put_if_absent":
            return None
        process.view.interfere = None
        process.view.cut(self._random.uniform(1, 100))
        return self._random.choice(_FATES)

    def _cut_heads(self) -> None:
        """A producer cannot write its hints, or a host cannot read them."""
        if process := self._some([*self._producing(), *self._cluster.processes]):
            process.view.cut(self._random.uniform(5, 150), prefix=LOG_HINTS)
