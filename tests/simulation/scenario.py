"""The scenario of a seed: periods of faults, after each of which the cluster must converge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from actorproc.handler.keyed_state import TIMERS
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.cluster import Cluster, InvariantViolation
from actorproc.simulation.faults import LATENCY_ONLY, Faults
from actorproc.simulation.loop import START, current_loop, run
from actorproc.simulation.streams import KnownStream
from actorproc.state.reading import read_state
from actorproc.storage.store import Store
from tests.simulation.host_faults import HostFaults
from tests.simulation.operators import Operators
from tests.simulation.played_sink import PlayedSink
from tests.simulation.played_streams import KINDS
from tests.simulation.reference_records import CountCheck, reference_value
from tests.simulation.styles import STYLES, Style
from tests.simulation.timer_checks import TimerCheck

HEAVY_FAULTS = Faults(slow=0.02, lost_request=0.01, lost_reply=0.01, late_write=0.01, busy=0.001)

TROUBLE = (600.0, 1_500.0)
"""Length of a period of faults, in seconds. None is longer than the whole run is to be."""

BETWEEN = (2.0, 60.0)
"""Seconds between two faults."""

SETTLING = 420.0
"""Seconds after the last fault within which the cluster must converge: a dead host is noticed (60), the survivors
rebalance (2 x 19), leases move (5 + 30 + 17), hanging requests time out (60), failed partitions restart (60), and a
position without rows is committed (60)."""

FIRED = 60.0
"""Seconds after the last record within which every timer fires that is due, also one that fails twice."""

SETTINGS = {"partition_refresh_interval": 60, "dead_letter_limit": 1, "poll_interval": 4}

REPLACE: Mapping[str, Any] = {"on_reset": "replace"}
UPSERT: Mapping[str, Any] = {"mode": "upsert", "key": ("id", "part")}

STREAMS = {name: kind.label for name, kind in KINDS.items()}
"""Kinds of streams, with a description of each."""


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one seed. `converged`: seconds that the cluster took to converge after each period of faults."""

    seed: int
    style: str
    stream: str
    seconds: float
    injected: Counter[str]
    seen: Counter[str]
    converged: list[float]
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
    sink: bool | Mapping[str, Any] = False,
) -> Result:
    """Run one seed for about `hours` hours of virtual time.

    Args:
        style: style of the handler, one of `STYLES`; chosen by the seed by default.
        stream: kind of the stream, one of `STREAMS`; chosen by the seed by default.
        operators: whether they pause, move, drain and reset; in half of the seeds by default.
        sink: whether a database gets the rows, and operators act on it; or its options. The seed chooses its mode.

    Raises:
        InvariantViolation: an invariant does not hold.
        SimulationError: the program cannot go on, or a task does not end.
        ExceptionGroup: a task failed, and nothing awaited it.
    """
    style = style or list(STYLES)[seed % len(STYLES)]
    stream = stream or stream_of(seed)
    if operators is None:
        operators = Random(f"{seed}/acts").random() < 0.5
    return run(_Scenario.play(seed, hours, hosts, partitions, style, stream, operators, sink), seed=seed)


def stream_of(seed: int) -> str:
    """The kind of stream that this seed reads: each one in turn, spread over all styles."""
    return list(STREAMS)[(seed % len(STYLES) + seed // len(STYLES)) % len(STREAMS)]


def _count_check(style: Style, stream: KnownStream) -> CountCheck | None:
    if style.wakes:
        return TimerCheck(style.check, stream, idle="stream_idle_time" not in style.settings)
    return CountCheck(style.check, stream.parents) if style.counts else None


def _sink_options(seed: int, style: Style, sink: bool | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The mode in which the sink of this seed works; None: there is no sink."""
    if isinstance(sink, Mapping):
        return sink
    modes: list[Mapping[str, Any]] = [{}, REPLACE]
    if not style.wakes:  # the rows of timers have no key
        modes.append(UPSERT)
    return Random(f"{seed}/mode").choice(modes) if sink else None


class _Scenario:
    def __init__(
        self,
        seed: int,
        hosts: int,
        partitions: int,
        style: str,
        stream: str,
        operators: bool,
        sink: bool | Mapping[str, Any],
    ) -> None:
        self._random = Random(f"{seed}/scenario")
        self._stream = KINDS[stream](partitions, self._random, seed)
        self._style = STYLES[style]
        most = Random(f"{seed}/batches").choice([10, 50, 10_000])
        floors = Random(f"{seed}/floors")
        windows = Random(f"{seed}/windows")
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
        self._counts = _count_check(self._style, self._stream.known)
        self._cluster = Cluster(
            type(handler.__name__, (handler,), {**self._style.traits, "durable": staticmethod(durable)}),
            self._stream.known,
            check=self._counts or self._style.check,
            timers=self._counts if isinstance(self._counts, TimerCheck) else None,
            cleared=self._counts.cleared if self._counts else lambda _: None,
            settings=settings,
            sink=_sink_options(seed, self._style, sink),
            seed=seed,
        )
        self._operators = Operators(self._cluster, seed=seed) if operators else None
        self._hosts = HostFaults(self._cluster, self._random, hosts)
        self._stream.join(self._hosts)
        self._faults = {**self._hosts.by_weight(), **self._stream.by_weight()}
        self._sink = PlayedSink(self._cluster, seed=seed) if self._cluster.sinks is not None else None
        if self._sink is not None:
            self._faults |= self._sink.by_weight()

    @classmethod
    async def play(
        cls,
        seed: int,
        hours: float,
        hosts: int,
        partitions: int,
        style: str,
        stream: str,
        operators: bool,
        sink: bool | Mapping[str, Any],
    ) -> Result:
        scenario, loop = cls(seed, hosts, partitions, style, stream, operators, sink), current_loop()
        cluster, until = scenario._cluster, START + hours * 3600
        await scenario._begin()
        converged = []
        while loop.now < until:
            await scenario._trouble(longest=hours * 3600)
            if loop.now >= until:  # so that the last record arrives during faults
                scenario._stream.end()
            await scenario._heal()
            await scenario._append_good_records()
            converged.append(await cluster.converged(within=SETTLING))
            if scenario._sink is not None:
                scenario._sink.delivered()
        scenario._stream.end()
        await scenario._stream.landed()
        await scenario._append_good_records()
        await cluster.converged(within=SETTLING)
        if scenario._style.wakes:
            await cluster.run_for(FIRED)
        await cluster.finished()
        await scenario._check_state()
        seen = cluster.seen() + scenario._stream.seen
        injected = cluster.injected()
        return Result(seed, style, stream, loop.now - START, injected, seen, converged, loop.fingerprint)

    async def _begin(self) -> None:
        await self._stream.begin()
        for name in self._hosts.wanted:
            self._cluster.start(name)

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
        for partition in self._stream.open_names():
            await self._stream.append(partition, [reference_value(self._random, "row")])

    async def _trouble(self, longest: float) -> None:
        pick, loop = self._random, current_loop()
        late, lateness = pick.choice([0, 0.01, 0.05]), pick.choice([(1.0, 20.0), (1.0, 20.0), (5.0, 90.0)])
        self._cluster.store.faults = replace(HEAVY_FAULTS, late_write=late, lateness=lateness)
        self._stream.fail_reads(pick.choice([0, 0.0005]))
        self._cluster.nudge_network.lost = pick.choice([0, 0.1, 1])
        until = loop.now + min(longest, pick.uniform(*TROUBLE))
        if self._operators is not None:
            self._operators.at_work = True
        if self._sink is not None:
            self._sink.trouble()
        while loop.now < until:
            pick.choices(list(self._faults), list(self._faults.values()))[0]()
            await self._cluster.run_for(pick.uniform(*BETWEEN))

    async def _heal(self) -> None:
        cluster = self._cluster
        cluster.store.faults, cluster.nudge_network.lost = LATENCY_ONLY, 0.0
        self._stream.fail_reads(0.0)
        for process in [*cluster.processes, *self._stream.processes]:
            cluster.resume(process)
            process.view.heal()
            process.view.interfere = None
        for name in [*self._hosts.wanted, *self._hosts.starters]:
            self._hosts.revive(name)
        await self._stream.heal()
        if self._operators is not None:
            await self._operators.withdraw()
        if self._sink is not None:
            await self._sink.heal()
