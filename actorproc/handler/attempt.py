"""One attempt at a batch: what the core and a `PartitionContext` share, and how it refuses what comes too late."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from actorproc.errors import HandlerError
from actorproc.records import SEQUENCE, Batch
from actorproc.rows.emitted import Emitted

T = TypeVar("T")

_FEW = 16  # calls that it costs nothing to keep


class Late:
    """Notes for which records rows were emitted after `process` had returned, by whatever thread. They are lost where the
    record is done with; where it is tried again, they may come in time.

    Args:
        tell: told why, once rows have come late for a record that is done with.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._upto: float = -1
        self._dropped: Collection[int] = ()
        self._waiting: set[int] = set()
        self._over = False
        self._lock = threading.Lock()

    def came(self, why: str, sequences: Iterable[object]) -> None:
        """`sequences`: of the records, as far as they are known; of none: it may be any."""
        known = {sequence for sequence in sequences if type(sequence) is int} or {-1}
        with self._lock:
            if not self._over:
                self._waiting |= known
                self._why = why
            lost = self._over and self._has_lost(known)
        if lost:
            self._tell(why)

    def count(self, *, upto: float = inf, dropped: Iterable[int] = ()) -> None:
        """The attempt is over, and done with the records up to `upto`; rows of those in `dropped` do not count, or come again."""
        with self._lock:
            self._over, self._upto, self._dropped = True, upto, frozenset(dropped)
            lost = self._has_lost(self._waiting)
            self._waiting.clear()
        if lost:
            self._tell(self._why)

    def _has_lost(self, sequences: Iterable[int]) -> bool:
        return self._upto >= 0 and any(s <= self._upto and s not in self._dropped for s in sequences)


@dataclass(slots=True)
class Attempt:
    """One attempt at a batch, and what has come of it so far: what the core and a `PartitionContext` share."""

    batch: Batch
    emitted: Emitted
    number: int = 1
    tables: list[pa.Table] = field(default_factory=list)
    letters: dict[int, str] = field(default_factory=dict)
    """Sequence -> reason, of records that the handler gave up itself."""
    failures: dict[int, Exception] = field(default_factory=dict)
    """Sequence -> error, of records that failed alone."""
    hopeless: set[int] = field(default_factory=set)
    """Sequences of those that would fail again in the same way."""
    awaited: Counter[int] = field(default_factory=Counter)
    """Sequences of records that `map` works on."""
    cut_off: dict[int, int] = field(default_factory=dict)
    """Of records whose `map` ended before it was done with them: how many rows it had emitted for each."""
    committed: int = -1
    """Sequence up to which the handler has committed the batch."""
    late: Late | None = None
    """Where rows are noted that come after `process` has returned."""
    calls: list[tuple[str, Coroutine[Any, Any, object]]] = field(default_factory=list)
    """Calls of `map` and `commit`, awaited or not. Those that have ended go, now and then."""
    _most_calls: int = _FEW

    def called(self, name: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        if len(self.calls) >= self._most_calls:
            self.calls[:] = [(other, call) for other, call in self.calls if not has_ended(call)]
            self._most_calls = max(_FEW, 2 * len(self.calls))  # or thousands at once would each look at all
        self.calls.append((name, made))
        return made

    @property
    def is_committing(self) -> bool:
        """Whether a commit that the handler has called may not have ended."""
        return any(name == "commit" and not has_ended(call) for name, call in self.calls)

    def uncommitted(self, by_sequence: dict[int, T]) -> dict[int, T]:
        """Without the records that the handler has committed already."""
        return {sequence: what for sequence, what in by_sequence.items() if sequence > self.committed}

    def finished(self, sequence: int) -> None:
        """A call of `map` for this record has ended."""
        self._let_go(sequence)
        self.cut_off.pop(sequence, None)  # by an earlier map, or one within the call, which has seen to it

    def ended_early(self, sequences: Iterable[int], *, emitted_by_it: bool) -> None:
        """A `map` has ended before its calls for these records.

        Args:
            emitted_by_it: whatever rows they have its calls have emitted.
        """
        rows = self.rows() if emitted_by_it else Counter()
        for sequence in sequences:
            self._let_go(sequence)
            self.cut_off[sequence] = rows[sequence]

    def _let_go(self, sequence: int) -> None:
        self.awaited[sequence] -= 1
        if not self.awaited[sequence]:  # a map around that one may still work on it
            del self.awaited[sequence]

    def abandoned(self) -> list[int]:
        """Sequences of records that a `map` left unfinished, and of which the handler has said nothing else."""
        if not self.cut_off:
            return []
        rows = self.rows()
        told = self.letters.keys() | self.failures.keys()
        return [
            sequence
            for sequence, before in self.cut_off.items()
            if rows[sequence] <= before and sequence not in told and sequence > self.committed
        ]

    def rows(self) -> Counter[int]:
        """How many rows each record has, by sequence, those that do not fit among them."""
        rows = self.emitted.counted()
        for table in self.tables:
            if SEQUENCE.name in table.column_names:
                rows.update(table[SEQUENCE.name].to_pylist())
        return rows

    @property
    def produced(self) -> int:
        """Grows with whatever the handler says."""
        return len(self.emitted) + len(self.tables) + len(self.letters) + len(self.failures)


def has_ended(call: Coroutine[Any, Any, object]) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CLOSED


def is_forgotten(call: Coroutine[Any, Any, object]) -> bool:
    """Nobody awaits it, and no task is about to."""
    if inspect.getcoroutinestate(call) != inspect.CORO_CREATED:
        return False
    try:
        return all(task.get_coro() is not call for task in asyncio.all_tasks())
    except RuntimeError:  # in the thread of a plain def
        return True


_TOO_LATE = "emitted after process() had returned: await the work before returning (ctx.map does)"
_CUT_OFF = "this partition is no longer run here, or process() took too long: what it emits now is refused"


class _Refusing(list[Any]):
    """Refuses, and says so once in the `log`, too: the error may end where nobody looks, as in a thread of the handler's."""

    def __init__(self, why: str, log: Any = None, late: Late | None = None) -> None:
        super().__init__()
        self._why = why
        self._log = log
        self._late = late

    def refuse(self, sequences: Iterable[object] = ()) -> NoReturn:
        """What came for the records with these."""
        if self._log is not None:
            self._log.error("partition.emitted_too_late", error=self._why)
            self._log = None
        if self._late is not None:
            self._late.came(self._why, sequences)
        raise HandlerError(self._why)

    def append(self, what: object) -> NoReturn:
        """A sequence, or a table with some."""
        if isinstance(what, pa.Table):
            self.refuse(what[SEQUENCE.name].to_pylist() if SEQUENCE.name in what.column_names else ())
        self.refuse([what])

    def extend(self, sequences: Iterable[object]) -> NoReturn:
        self.refuse(sequences)


class _ClosedDict(dict[int, Any]):
    def __init__(self, refusing: _Refusing) -> None:
        super().__init__()
        self._refusing = refusing

    def __setitem__(self, key: int, value: Any) -> NoReturn:
        self._refusing.refuse([key])


class Closed(Attempt):
    """An attempt that takes nothing more.

    Args:
        log: where what comes is said, if it is news.
        cut_off: `process` may not know that it ended.
    """

    def __init__(self, attempt: Attempt, log: Any, *, cut_off: bool) -> None:
        refusing = _Refusing(_CUT_OFF) if cut_off else _Refusing(_TOO_LATE, log, attempt.late)
        super().__init__(attempt.batch, attempt.emitted, 0, refusing, _ClosedDict(refusing), _ClosedDict(refusing))
        self.refusing = refusing
        """In place of the lists of rows that a context holds."""
