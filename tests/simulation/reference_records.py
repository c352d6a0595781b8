"""Reference records, which contain their expected result, and the check that compares."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from actorproc.handler.context import PartitionContext
from actorproc.handler.wake_context import WakeContext
from actorproc.records import Record
from actorproc.simulation.loop import current_loop
from actorproc.simulation.output_checks import RecordCheck, RecordResult

KINDS = {"row": 49, "many": 12, "drop": 19, "fail": 2, "letter": 3, "misfit": 2, "unsteady": 12, "slow": 1}
"""Kind of record -> percentage.

row: one row. many: several rows. drop: no row. fail: always fails. letter: the handler dead-letters it. misfit: one of
its rows does not fit the schema. unsteady: a random one of these at each attempt. slow: one row, after a wait.
"""

_UNSTEADY = ("row", "many", "drop", "fail", "letter", "misfit")
_ERRORS = {"fail": "ValueError", "letter": "DeadLetter", "misfit": "RowMismatch"}

SCHEMA = "id long, part int, parts int, attempt string"
"""Output schema. `attempt`: name of the attempt that emitted the row; all rows of a record must have the same one."""

MISFIT = 2**40
"""A value that does not fit `part`."""


def reference_value(random: Random, kind: str | None = None) -> bytes:
    """A random record that contains its expected result."""
    kind = kind or random.choices(list(KINDS), list(KINDS.values()))[0]
    return orjson.dumps({"kind": kind, "id": random.getrandbits(48), "rows": random.randint(2, 5)})


class Attempt:
    """One attempt at a batch, with random numbers of its own that depend on the seed only."""

    def __init__(self, ctx: PartitionContext | WakeContext) -> None:
        self.name = f"{ctx.host}/{ctx.epoch}/{ctx.attempt}/{current_loop().now!r}"

    def draw(self, *what: object) -> float:
        """A random number from 0 to below 1."""
        return zlib.crc32("/".join(map(str, (self.name, *what))).encode()) / 2**32

    def plan(self, record: Record) -> PlannedResult:
        """The result that the record should have in this attempt."""
        asked = record.json()
        kind, number = asked["kind"], asked["id"]
        wait = 0.0
        if kind == "unsteady":
            kind = _UNSTEADY[int(self.draw(number) * len(_UNSTEADY))]
        elif kind == "slow":
            kind, wait = "row", number % 40 / 10
        # Records that fail or are dead-lettered emit rows first, which must be dropped.
        count = {"many": asked["rows"], "misfit": asked["rows"], "drop": 0}.get(kind, 1)
        rows = [{"id": number, "part": part, "parts": count, "attempt": self.name} for part in range(count)]
        if kind == "misfit":
            rows[-1]["part"] = MISFIT
        return PlannedResult(number, kind, rows, wait)


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """A kind (row, many, drop, fail, letter or misfit), the rows to emit, and seconds to wait."""

    number: int
    kind: str
    rows: list[dict[str, Any]]
    wait: float


def check_reference(ended: RecordResult) -> str | None:
    """Compare a result with the one that the record expects."""
    asked = orjson.loads(ended.value)
    rows, letters, kind = len(ended.rows), len(ended.letters), asked["kind"]
    if rows and letters:
        return "is a row and a dead letter"
    if rows and (why := _wrong_rows(ended, asked)):
        return why
    expected = {"row": (1, 0), "slow": (1, 0), "many": (asked["rows"], 0), "drop": (0, 0)}
    allowed = [(1, 0), (asked["rows"], 0), (0, 0), (0, 1)] if kind == "unsteady" else [expected.get(kind, (0, 1))]
    if (rows, letters) not in allowed:
        return f"of kind {kind!r} ended as {rows} rows and {letters} dead letters, not as one of {allowed}"
    if letters:
        if ended.letters[0]["value"].encode() != ended.value:
            return f"is a dead letter of another record: {ended.letters[0]['value']}"
        error = ended.letters[0]["error"]["type"]
        if error not in ([*_ERRORS.values()] if kind == "unsteady" else [_ERRORS[kind]]):
            return f"of kind {kind!r} is a dead letter with error {error}"
    return None


def check_reference_once(ended: RecordResult) -> str | None:
    """`check_reference` for at-most-once delivery: any record of a failed batch may be a dead letter."""
    if len(ended.letters) == 1 and not ended.rows:
        return None
    return check_reference(ended)


COUNTED = 60
"""Keys by which `CountCheck` counts, in each partition."""

CYCLE = 3
"""After this count a key is deleted and begins anew."""


def count_key(number: int) -> str:
    """The key of the record with this id."""
    return f"key-{number % COUNTED}"


class CountCheck:
    """Checks the counts of a stateful handler: the rows of each key are numbered 1 to `CYCLE`, again and again.

    A count follows `#` in the column `attempt`. A state that is lost, outdated or not committed with its rows shows. A
    partition goes on with the counts of its parents; after a merge either parent's may count.

    Args:
        check: of everything else.
        parents: returns the partitions that a partition follows.
    """

    def __init__(self, check: RecordCheck, parents: Callable[[str], Iterable[str]] = lambda _: ()) -> None:
        self._check = check
        self._parents = parents
        self.counts: dict[tuple[str, str], int] = {}
        """By partition and key."""

    def __call__(self, ended: RecordResult) -> str | None:
        if ended.rows:
            key = ended.partition, count_key(ended.rows[0]["id"])
            count = int(ended.rows[0]["attempt"].rpartition("#")[2])
            expected = {before + 1 for before in self._before(*key)}
            if count not in expected:
                return f"has count {count} of {key[1]}, not {expected}: its state is not that of the rows before it"
            self.counts[key] = count
        return self._check(ended)

    def wrong_state(self, partition: str, found: Mapping[Any, int]) -> dict[str, int]:
        """The keys with a wrong value in the state of the partition, with that value; 0 for none."""
        has_begun = found or any(where == partition for where, _ in self.counts)
        keys = map(count_key, range(COUNTED)) if has_begun else ()
        there = {key: found.get(key, 0) for key in keys}
        return {key: count for key, count in there.items() if count not in self._before(partition, key)}

    def cleared(self, partition: str) -> None:
        """A reset has cleared the state of the partition."""
        self.counts = {key: count for key, count in self.counts.items() if key[0] != partition}

    def _before(self, partition: str, key: str) -> set[int]:
        """The permitted counts of a key, by the rows so far; 0: the key is not there."""
        if (count := self.counts.get((partition, key))) is not None:
            return {count % CYCLE}
        return {count for parent in self._parents(partition) for count in self._before(parent, key)} or {0}


def _wrong_rows(ended: RecordResult, asked: Mapping[str, Any]) -> str | None:
    if len({row["attempt"] for row in ended.rows}) > 1:
        return f"has rows of several attempts: {sorted(row['attempt'] for row in ended.rows)}"
    parts = ended.rows[0]["parts"]
    if [row["part"] for row in ended.rows] != list(range(parts)) or {row["id"] for row in ended.rows} != {asked["id"]}:
        return f"should have {parts} rows, has {list(ended.rows)}"
    return None
