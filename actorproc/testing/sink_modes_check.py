"""Checks that a sink keeps its modes: random deliveries, redeliveries and resets, beside a reference in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from actorproc.records import SEQUENCE
from actorproc.sinks.protocol import Delivery, Sink, SinkRow

Rows = Callable[[], Awaitable[Sequence[int]]]
Modes = Callable[[Mapping[str, Any]], tuple[Sink, Rows]]
"""Makes a sink with these options, on an empty target of its own, and what reads the column `n` of its rows."""

SCHEMA = pa.schema(
    [pa.field("n", pa.int64()), pa.field("k", pa.int64()), pa.field("gone", pa.bool_()), SEQUENCE]
)  # fmt: skip

_ROUNDS = 30
_KEYS = 6


class InvalidMode(AssertionError):
    """The sink does not have the rows that its mode asks for."""


class _Row(NamedTuple):
    n: int
    key: int | None
    gone: bool
    sequence: int


@dataclass
class _Partition:
    """The commits of one partition, as its chain has them."""

    name: str
    depth: int = 0
    commits: list[list[_Row]] = field(default_factory=list)
    resets: dict[int, int] = field(default_factory=dict)
    """Number of the commit -> sequence to which it goes back."""
    sequence: int = 0
    row: SinkRow | None = None


class _Stage:
    """Delivers to one sink, and knows what is due."""

    def __init__(self, sink: Sink, rows: Rows, random: Random) -> None:
        self._sink, self._rows, self.random = sink, rows, random
        self._made = self._terms = 0
        self.home, self.life = "memory://check", 1
        self.registration = "registration-1"

    def commit(self, partition: _Partition, *, null_keys: bool = False) -> None:
        rows = list[_Row]()
        for _ in range(self.random.randrange(5)):
            key = self.random.randrange(_KEYS)
            is_null = null_keys and self.random.random() < 0.2
            rows.append(_Row(self._made, None if is_null else key, self.random.random() < 0.2, partition.sequence))
            self._made += 1
            partition.sequence += self.random.randrange(3)
        partition.sequence += 1
        partition.commits.append(rows)

    def reset(self, partition: _Partition) -> None:
        partition.sequence = self.random.randrange(partition.sequence + 1)
        partition.resets[len(partition.commits)] = partition.sequence - 1
        partition.commits.append([])

    async def deliver(
        self, partition: _Partition, since: int, *, begins: bool = False, after: int | None = None
    ) -> None:
        """The commits from `since` on, in one delivery: for a redelivery with a new term."""
        was = partition.row
        self._terms += begins or was is None
        commits = partition.commits[since:]
        rows = [row for commit in commits for row in commit]
        columns = [[getattr(row, name) for row in rows] for name in _Row._fields]
        table = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        now = SinkRow(self.home, self.life, f"term-{self._terms}", 0, len(partition.commits))
        await self._sink.write(
            Delivery(
                partition.name, table, since, [len(commit) for commit in commits], was, now,
                begins=begins or was is None, replace_after=after, depth=partition.depth,
                registration=self.registration,
            )
        )  # fmt: skip
        partition.row = now

    async def compare(self, due: Sequence[int], after: str) -> None:
        found, wanted = Counter(await self._rows()), Counter(due)
        if found != wanted:
            raise InvalidMode(
                f"after {after} these rows are missing: {sorted((wanted - found).elements())}, and these should not "
                f"be there: {sorted((found - wanted).elements())}"
            )


async def check_upsert(modes: Modes) -> None:
    """Keys that two partitions share, deletions, redeliveries in any order, and new registrations."""
    sink, rows = modes({"mode": "upsert", "key": ("k",), "deleted": "gone"})
    async with sink:
        await sink.open(SCHEMA)
        stage = _Stage(sink, rows, Random(1))
        parts = [_Partition("parent"), _Partition("child", depth=1)]
        due = dict[int | None, tuple[tuple[int, int, int], int | None]]()
        for _ in range(_ROUNDS):
            part = stage.random.choice(parts)
            again = stage.random.random() < 0.3 and part.commits
            since = stage.random.randrange(len(part.commits)) if again else len(part.commits)
            for _ in range(0 if again else stage.random.randrange(1, 4)):
                stage.commit(part)
            if again and stage.random.random() < 0.3:
                stage.life += 1
                stage.registration = f"registration-{stage.life}"
            await stage.deliver(part, since, begins=bool(again))
            for number, commit in enumerate(part.commits[since:], since):
                version = (stage.life, part.depth, number)
                for row in {row.key: row for row in commit}.values():
                    if row.key not in due or version >= due[row.key][0]:
                        due[row.key] = (version, None if row.gone else row.n)
            await stage.compare([n for _, n in due.values() if n is not None], "upserts")


async def check_replace(modes: Modes) -> None:
    """Resets and redeliveries take back what they repeat, and nothing of another partition or processor."""
    sink, rows = modes({"on_reset": "replace"})
    async with sink:
        await sink.open(SCHEMA)
        stage = _Stage(sink, rows, Random(2))
        parts = [_Partition("a"), _Partition("b")]
        due: dict[str, list[_Row]] = {part.name: [] for part in parts}
        for _ in range(_ROUNDS):
            part = stage.random.choice(parts)
            since, after = len(part.commits), None
            if part.commits and stage.random.random() < 0.3:
                stage.reset(part)
                after = part.resets[since]
            stage.commit(part)
            if after is not None:
                due[part.name] = [row for row in due[part.name] if row.sequence <= after]
            due[part.name] += part.commits[-1]
            await stage.deliver(part, since, after=after)
            await stage.compare([row.n for name in due for row in due[name]], "a reset")
        part = parts[0]
        stage.home = "memory://another"
        stage.commit(part)
        await stage.deliver(part, len(part.commits) - 1, begins=True, after=-1)
        due[part.name] += part.commits[-1]
        await stage.compare([row.n for name in due for row in due[name]], "a reset of another processor")


async def check_keep(modes: Modes) -> None:
    """Rows without a key are refused, and neither they nor the others come twice."""
    sink, rows = modes({"mode": "upsert", "key": ("k",), "on_refused": "keep"})
    async with sink:
        await sink.open(SCHEMA)
        stage = _Stage(sink, rows, Random(3))
        part, due = _Partition("a"), dict[int, int]()
        for _ in range(_ROUNDS):
            again = stage.random.random() < 0.3 and part.commits
            since = stage.random.randrange(len(part.commits)) if again else len(part.commits)
            for _ in range(0 if again else stage.random.randrange(1, 4)):
                stage.commit(part, null_keys=True)
            await stage.deliver(part, since, begins=bool(again))
            due |= {row.key: row.n for commit in part.commits for row in commit if row.key is not None}
            await stage.compare(list(due.values()), "refused rows")
