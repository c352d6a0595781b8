"""Positions in a shard, and the sequences of its records.

Kinesis numbers the records of a shard with integers of some 186 bits, whose layout is not public. A sequence of
actorproc has 63 bits. So it is made of a record's arrival time in milliseconds, which Kinesis stores with the record,
and of a counter below it:

    sequence = max(time << 20, sequence of the record before + 1)

It grows also where arrival times do not, and tells apart the records that the Kinesis Producer Library has put into
one. A position has Kinesis' own number of the last record, and the sequence of that record: so whoever reads on from a
position gives every record the same sequence.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorproc.errors import SourceError

SEQUENCE_BITS = 20
"""Bits of the counter below the milliseconds. A counter that overflows counts on in the next millisecond."""

_HOUR = 3_600_000  # milliseconds
_FIRST = "TRIM_HORIZON"
_TIME = "AT_TIMESTAMP"


class Position(NamedTuple):
    """A place in a shard. As text: `NUMBER:SEQUENCE:SEEN`.

    Attributes:
        number: Kinesis' sequence number of the last record that was read; or `TRIM_HORIZON`, the first record that
            there is; or `AT_TIMESTAMP`, the first one with a higher sequence.
        sequence: of the last record before; -1: none.
        seen: time in milliseconds up to which the shard was read; 0: not known. At the end it moves once an hour, so
            that an idle shard is committed no more often.
    """

    number: str = _FIRST
    sequence: int = -1
    seen: int = 0

    def __str__(self) -> str:
        return f"{self.number}:{self.sequence}:{self.seen}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises SourceError: the text is no position in a shard."""
        try:
            number, sequence, seen = text.split(":")
            if number not in (_FIRST, _TIME):
                int(number)
            return cls(number, int(sequence), int(seen))
        except ValueError:
            raise SourceError(f"position {text!r} is no position in a shard of Kinesis") from None

    @classmethod
    def at_time(cls, milliseconds: int) -> Position:
        """Before the first record that arrived then or later."""
        return cls(_TIME, (max(0, milliseconds) << SEQUENCE_BITS) - 1)

    @property
    def is_after_record(self) -> bool:
        return self.number not in (_FIRST, _TIME)

    @property
    def time(self) -> int:
        """Time in milliseconds at which it begins; 0: it is no time."""
        return (self.sequence + 1) >> SEQUENCE_BITS if self.number == _TIME else 0

    def iterator(self, now: int) -> dict[str, Any]:
        """Arguments of GetShardIterator, which refuses times in the future: records before `time` are dropped here."""
        if self.number == _FIRST:
            return {"ShardIteratorType": _FIRST}
        if self.number == _TIME:
            return {"ShardIteratorType": _TIME, "Timestamp": min(self.time, now) / 1_000}
        return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": self.number}

    def after(self, number: str, sequence: int) -> Position:
        """After a record."""
        return Position(number, sequence, max(self.seen, sequence >> SEQUENCE_BITS))

    def at_end(self, now: int) -> Position:
        """Here, where everything up to `now` was read."""
        return self._replace(seen=max(self.seen, now // _HOUR * _HOUR))

    def at_first(self) -> Position:
        """Before the first record that is left, with sequences that go on."""
        return Position(_FIRST, self.sequence)

    def may_miss(self, oldest: int) -> bool:
        """Whether records after it may be gone.

        Args:
            oldest: time in milliseconds since which records are kept.
        """
        return 0 < self.seen < oldest

    def has_passed(self, end: Position) -> bool:
        """Whether a reader here has read all before `end`, which is after a record, or in a shard without records."""
        if not end.is_after_record:
            return True
        return int(self.number) >= int(end.number) if self.is_after_record else self.sequence >= end.sequence


def sequences(times: npt.NDArray[np.int64], before: int) -> npt.NDArray[np.int64]:
    """Sequences of consecutive records.

    Args:
        times: of their arrival, in milliseconds.
        before: sequence of the record before them.
    """
    if not len(times):
        return np.empty(0, np.int64)
    counted = np.arange(len(times))
    lowest = (times << SEQUENCE_BITS) - counted
    lowest[0] = max(lowest[0], before + 1)
    return np.maximum.accumulate(lowest) + counted


def milliseconds(time: datetime) -> int:
    """Since 1970, rounded up: the first record at or after a time is not before it."""
    return -int(-time.timestamp() * 1_000 // 1)
