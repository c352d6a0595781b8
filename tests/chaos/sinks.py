"""Sinks that follow the processor of a chaos run: commands meanwhile, and a comparison of each, row by row."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from actorproc.output.row_reader import partitions_with_state
from actorproc.retention.boundary import Boundary, read_boundary
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.chaos import programs
from tests.chaos.commands import Command, give
from tests.chaos.deliveries import DeliveryLines
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.journal import read_journal
from tests.chaos.outages import Outages
from tests.chaos.place import Place
from tests.chaos.target_servers import TargetServers
from tests.chaos.targets import Held, Output, Target
from tests.chaos.verdict import Verdict
from tests.chaos.workload import GrownHandler

OUTAGE_EVERY = 30.0  # mean seconds between two outages of a server
ENOUGH = 2
"""Outages of each server that a run needs."""

COMMAND_EVERY = 3.0  # mean seconds between two commands
ACTS = {"pause": 1, "resume": 3, "compact": 3, "trim": 4, "redeliver": 1}
"""Command -> weight."""
YOUNGEST = "2s"  # of the commits that are compacted
KILLED_SHARE = 0.15

KEEP_EVERY = 2.0  # seconds between two looks for output files to keep; trims delete older ones
LAST_COMMAND = 60.0  # seconds
CATCH_UP = 180.0
"""Seconds in which the last host must deliver what the sinks do not have yet."""

SETTINGS = {"commit_interval": 0.5, "compact_interval": 15}
"""Of the hosts."""


class SinkTrouble:
    """Ends and starts servers, and gives commands, while the storm lasts. Compares each sink at the end."""

    def __init__(
        self, names: Sequence[str], place: Place, processor: str, random: Random, say: Callable[[str], None],
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self._place, self._layout, self._random, self._say = place, ProcessorLayout(processor), random, say
        servers = TargetServers(place.folder, Path(place.container, processor, "output"), stack, random)
        self._targets: Mapping[str, Target] = {name: servers.target(name) for name in names}
        self._outages = [Outages(server, random, say, pace=OUTAGE_EVERY, enough=ENOUGH) for server in servers.started]
        (logs := place.folder / "sink-logs").mkdir()
        self._fleet = Fleet(logs)
        self._config = place.folder / "sinks.toml"
        self._config.write_text("\n".join(_section(name, target) for name, target in self._targets.items()))
        self._done: Counter[str] = Counter()
        self._next_command = self._in(COMMAND_EVERY)
        self._next_keep = 0.0
        self._paused: list[str] = []
        self._kill: list[tuple[float, Child]] = []
        self._resumed = False
        self._boundaries: Mapping[str, Boundary] = {}
        self._compared: Counter[str] = Counter()

    @contextmanager
    def watched(self) -> Iterator[SinkTrouble]:
        """End its processes at the end."""
        with self._fleet:
            yield self

    @property
    def arguments(self) -> list[str]:
        """Of `serve`."""
        return ["--config", str(self._config), "--hooks", f"{DeliveryLines.__module__}:{DeliveryLines.__name__}"]

    # As something beside the run

    def tick(self, *, storm: bool) -> None:
        now = time.monotonic()
        for each in self._outages:
            each.tick(storm=storm)
        for at, child in self._kill:
            if now > at and child.state is State.UP:
                child.kill()
                self._done["killed"] += 1
        self._kill = [(at, child) for at, child in self._kill if child.state is State.UP]
        self._fleet.reap()
        if self._place.archive is not None and now > self._next_keep:
            self._place.archive.keep()
            self._next_keep = time.monotonic() + KEEP_EVERY
        if storm and now > self._next_command:
            self._next_command = self._in(COMMAND_EVERY)
            self._act()
        elif not storm and not self._resumed and not self._fleet.children:
            self._resumed = True
            for name in self._targets:
                self._give("sinks", "resume", name)

    @property
    def is_calm(self) -> bool:
        return all(each.is_calm for each in self._outages) and self._resumed and not self._fleet.children

    @property
    def had_enough(self) -> bool:
        archive = self._place.archive
        return all(each.had_enough for each in self._outages) and (archive is None or archive.has_deleted())

    async def finish(self) -> None:
        """A last host delivers what is left. Then see what was trimmed, and `verify`."""
        await self._deliver_the_rest()
        if self._place.archive is not None:
            self._place.archive.keep()
        async with open_store(self._place.container, self._place.settings) as store:
            names = await partitions_with_state(store, self._layout)
            self._boundaries = {name: await read_boundary(store, self._layout.boundary(name)) for name in names}
        verify = self._give("verify")
        await self._fleet.end(LAST_COMMAND)
        if verify.process.exitcode != 0:
            self._fleet.faults.append(f"verify ended with {verify.process.exitcode}: {verify.text[-2000:]}")

    def judge(self, verdict: Verdict) -> list[str]:
        """Compare each sink with the output, row by row."""
        faults = list(self._fleet.faults)
        output = Output(verdict.commits, self._boundaries)
        for name, target in self._targets.items():
            rows = Counter(target.rows())
            self._compared[name] = rows.total()
            faults += compare(name, rows, target.expected(output), target.allowed(output))
            faults += [f"sink {name}: {fault}" for fault in target.faults()]
        if not all(self._compared[name] for name in self._targets):
            faults.append(f"a sink has no row: {dict(self._compared)}")
        return faults + self._check_retention(verdict)

    def _check_retention(self, verdict: Verdict) -> list[str]:
        """Originals are missing only where a trim, or a compaction and a trim, may have deleted them."""
        faults = []
        for name, commits in verdict.commits.items():
            boundary = self._boundaries[name]
            folder = Path(self._place.container, self._layout.output_dir(name))
            missing = [n for n in range(len(commits)) if not (folder / f"{n:020d}.parquet").exists()]
            self._done["originals deleted"] += len(missing)
            self._done["commits trimmed"] += boundary.lowest
            if wrong := [n for n in missing if n >= boundary.originals]:
                faults.append(f"partition {name}: commits {wrong[:5]} are missing, and count from {boundary.originals}")
        merged = [child for child in self._fleet.ended if child.name.startswith("compact") and " became " in child.text]
        self._done["compact that merged files"] = len(merged)
        needed = ("originals deleted", "compact that merged files", "commits trimmed")
        return faults + [f"the run has no {what}" for what in needed if not self._done[what]]

    @property
    def line(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in self._done.items())
        return "; ".join(["sinks: " + done, *(each.line for each in self._outages if each.done)])

    @property
    def summary(self) -> str:
        journal = read_journal(self._place.folder.glob("*logs/*.log"))
        lines = ["each committed row is in each sink once"]
        for name, target in self._targets.items():
            what = "transactions" if target.is_table else "deliveries"
            text = f"{name}: {self._compared[name]:,} rows compared, {journal.deliveries[name]:,} {what}, "
            lines.append(f"{text}{journal.sink_errors[name]:,} errors{f'; {target.note}' if target.note else ''}")
        return "\n".join([*lines, self.line])

    # How

    def _in(self, mean: float) -> float:
        return time.monotonic() + self._random.expovariate(1 / mean)

    def _act(self) -> None:
        what = self._random.choices(list(ACTS), list(ACTS.values()))[0]
        name = self._random.choice(sorted(self._targets))
        match what:
            case "compact":
                child = self._give("compact", "--older-than", YOUNGEST, "--keep", f"{programs.HOUR:g}s")
            case "trim":
                child = self._give("trim", "--older-than", f"{programs.HOUR:g}s", "--yes")
            case "redeliver":
                newest = [name for name, target in sorted(self._targets.items()) if not target.repeats]
                if not newest:
                    return
                commit = str(self._random.randrange(200))
                child = self._give("sinks", "redeliver", self._random.choice(newest), "--from", commit)
            case "pause":
                self._paused.append(name)
                child = self._give("sinks", "pause", name)
            case _:
                child = self._give("sinks", "resume", self._paused.pop(0) if self._paused else name)
        if self._random.random() < KILLED_SHARE:
            self._kill.append((time.monotonic() + self._random.uniform(0.05, 1.5), child))

    def _give(self, *words: str) -> Command:
        verb = words[:2] if words[0] == "sinks" else words[:1]
        self._done[" ".join(verb)] += 1
        self._say(f"operator: {' '.join(words)}")
        arguments = [*words, "--config", str(self._config)]
        name = f"{words[0]}{self._done.total()}"
        return give(self._fleet, self._place, self._layout.processor, name, arguments, programs.hasty_command)

    async def _deliver_the_rest(self) -> None:
        arguments = ["--log-level", "debug", "serve", f"{GrownHandler.__module__}:{GrownHandler.__name__}"]
        arguments += ["--name", self._layout.processor, "--host", "last", "--source", self._place.log, "--container"]
        arguments += [self._place.container, *self.arguments, "--until-end"]
        last = self._fleet.start(0, "last", programs.host, self._place.folder, self._place.environment(), arguments)
        last.until_end = True
        await self._fleet.end(CATCH_UP)


def compare(name: str, found: Counter[Held], expected: Iterable[Held], allowed: Iterable[Held] = ()) -> list[str]:
    """The faults of a sink that holds these rows: each expected one must be there once, an allowed one may be."""
    wanted = Counter(expected)
    faults = []
    if missing := wanted - found:
        faults.append(f"sink {name} lacks {missing.total():,} of {wanted.total():,} rows, such as {_first(missing)}")
    if more := found - wanted - Counter(allowed):
        faults.append(f"sink {name} has {more.total():,} rows too many, such as {_first(more)}")
    return faults


def _first(rows: Counter[Held]) -> Held:
    return min(rows, key=repr)


def _section(name: str, target: Target) -> str:
    lines = [f"{option} = {json.dumps(value)}" for option, value in target.options().items()]
    return "\n".join([f"[sinks.{name}]", *lines, ""])
