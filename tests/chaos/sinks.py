"""Sinks that follow the processor of a chaos run: their servers stop and start, and each must hold each row once."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.chaos import programs
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.place import Place
from tests.chaos.verdict import Verdict

TABLE = "chaos"

STRIKE_EVERY = 12.0  # mean seconds between two stops of a server
AWAY = (0.1, 6.0)
"""Seconds for which a server is away."""
ENOUGH = 2
"""Stops of each server that a run needs."""

COMMAND_EVERY = 6.0  # mean seconds between two commands for sinks
LOOK_EVERY = 3.0  # seconds between two looks whether the sinks have everything

Key = tuple[Any, ...]


class FollowingSink(ABC):
    """One sink of a run."""

    name: ClassVar[str]
    columns: ClassVar[Sequence[str]] = ("_sequence", "producer", "number", "part", "parts", "token", "count", "session")
    """Of the rows that are compared."""
    has_server: ClassVar[bool] = True

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """Of `serve`."""

    def stop(self) -> None:
        """Stop the server suddenly."""

    def start(self) -> None:
        """Start it again."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, Key]]:
        """All rows that it holds: partition and `columns`."""


class PostgresTable(FollowingSink):
    """A table of a server that is killed and started."""

    name = "postgres"

    def __init__(self, server: Any) -> None:
        self._server = server

    def arguments(self) -> Sequence[str]:
        return ["--sink", f"{self.name}={self._server.url}", "--sink-option", f"{self.name}.table={TABLE}"]

    def stop(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def rows(self) -> Iterator[tuple[str, Key]]:
        import psycopg

        with psycopg.connect(self._server.url) as connection:
            names = ", ".join(f'"{column}"' for column in ("_partition", *self.columns))
            for partition, *values in connection.execute(f"SELECT {names} FROM {TABLE}"):
                yield partition, tuple(values)


class SqliteTable(FollowingSink):
    """A table of a file, which all hosts write."""

    name = "sqlite"
    has_server = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def arguments(self) -> Sequence[str]:
        return ["--sink", f"{self.name}=sqlite:{self._path}", "--sink-option", f"{self.name}.table={TABLE}"]

    def rows(self) -> Iterator[tuple[str, Key]]:
        with sqlite3.connect(self._path) as connection:
            names = ", ".join(f'"{column}"' for column in ("_partition", *self.columns))
            for partition, *values in connection.execute(f"SELECT {names} FROM {TABLE}"):
                yield partition, tuple(values)


def _postgres(_: Path, stack: ExitStack) -> FollowingSink:
    from tests.connectors.postgres.server import postgres

    return PostgresTable(stack.enter_context(postgres()))


def _sqlite(folder: Path, _: ExitStack) -> FollowingSink:
    return SqliteTable(folder / "sink.db")


SINKS: Mapping[str, Callable[[Path, ExitStack], FollowingSink]] = {"postgres": _postgres, "sqlite": _sqlite}
"""Makes a sink, with its server, in the folder of a run."""


class Command(Child):
    """`actorproc sinks` or `compact`. It may be refused."""

    def why_unexpected(self, code: int) -> str | None:
        if (self.state is State.KILLED and code < 0) or (code in (0, 1, 2) and "Traceback" not in self.text):
            return None
        return f"{self.name} ended with {code}: {self.text[-600:]}"


class SinkTrouble:
    """Stops and starts servers, pauses and resumes sinks, and compacts, while the storm lasts. Compares at the end."""

    def __init__(
        self, sinks: Sequence[FollowingSink], place: Place, processor: str, random: Random, say: Callable[[str], None]
    ) -> None:
        self.sinks = sinks
        self._place, self._processor, self._random, self._say = place, processor, random, say
        logs = place.folder / "sink-logs"
        logs.mkdir()
        self._fleet = Fleet(logs)
        self._done: Counter[str] = Counter()
        self._away: dict[str, float] = {}  # sink -> when its server comes back
        self._next = {sink.name: self._in(STRIKE_EVERY) for sink in sinks if sink.has_server}
        self._next_command = self._in(COMMAND_EVERY)
        self._resumed, self._is_behind = False, True
        self._list: Child | None = None
        self._look_at = 0.0
        self._compared: Counter[str] = Counter()

    @contextmanager
    def watched(self) -> Iterator[SinkTrouble]:
        """End its processes at the end."""
        with self._fleet:
            yield self

    @property
    def arguments(self) -> list[str]:
        """Of `serve`."""
        return [argument for sink in self.sinks for argument in sink.arguments()]

    # As something beside the run

    def tick(self, *, storm: bool) -> None:
        now = time.monotonic()
        for sink in self.sinks:
            if (back := self._away.get(sink.name)) is not None and (now > back or not storm):
                sink.start()
                del self._away[sink.name]
            elif storm and now > self._next.get(sink.name, now + 1) and sink.name not in self._away:
                sink.stop()
                seconds = self._random.uniform(*AWAY)
                self._say(f"the server of sink {sink.name} is killed, for {seconds:.1f} s")
                self._away[sink.name], self._next[sink.name] = now + seconds, self._in(STRIKE_EVERY)
                self._done[f"kills of {sink.name}"] += 1
        self._fleet.reap()
        if storm and now > self._next_command:
            self._next_command = self._in(COMMAND_EVERY)
            name = self._random.choice(self.sinks).name
            act = self._random.choice([("sinks", "pause", name), ("sinks", "resume", name), ("compact",)])
            self._command(*act)
        elif not storm and not self._resumed and not self._fleet.children:
            self._resumed = True
            self._look_at = now + LOOK_EVERY
            for sink in self.sinks:
                self._command("sinks", "resume", sink.name)
        elif self._resumed:
            self._look()

    @property
    def is_calm(self) -> bool:
        return not self._away and self._resumed and not self._fleet.children and not self._is_behind

    @property
    def had_enough(self) -> bool:
        return all(self._done[f"kills of {sink.name}"] >= ENOUGH for sink in self.sinks if sink.has_server)

    async def finish(self) -> None:
        """Nothing is left: the run was not calm before each sink had everything."""

    def judge(self, verdict: Verdict) -> list[str]:
        """Compare each sink with the output, row by row."""
        faults = list(self._fleet.faults)
        for sink in self.sinks:
            expected = Counter(
                (partition, tuple(row[column] for column in sink.columns))
                for partition, rows in verdict.rows.items()
                for row in rows
            )
            found = Counter(sink.rows())
            self._compared[sink.name] = found.total()
            missing, more = expected - found, found - expected
            if missing:
                faults.append(f"sink {sink.name} lacks {missing.total()} rows, such as {next(iter(missing))}")
            if more:
                faults.append(f"sink {sink.name} has {more.total()} rows too many, such as {next(iter(more))}")
        if not self._compared.total():
            faults.append("no row was compared with a sink")
        return faults

    @property
    def line(self) -> str:
        return f"sinks: {', '.join(f'{count} {what}' for what, count in self._done.items())}"

    @property
    def summary(self) -> str:
        rows = ", ".join(f"{name} {count:,}" for name, count in self._compared.items())
        return f"each committed row is in each sink once: {rows} rows; {self.line}"

    # How

    def _in(self, mean: float) -> float:
        return time.monotonic() + self._random.expovariate(1 / mean)

    def _command(self, *words: str) -> Child:
        arguments = [*words, "--name", self._processor, "--container", self._place.container]
        self._done[" ".join(words[:2])] += 1
        number = self._done.total()
        return self._fleet.start(
            number, f"{words[0]}{number}", programs.host, self._place.folder, self._place.environment(), arguments,
            kind=Command,
        )  # fmt: skip

    def _look(self) -> None:
        """Ask `actorproc sinks list`, until it says that all are up to date."""
        if (child := self._list) is not None and child.state is State.ENDED:
            self._is_behind = child.text.count("up to date") < len(self.sinks)
            self._list = None
        if self._is_behind and self._list is None and time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY
            self._list = self._command("sinks", "list")
