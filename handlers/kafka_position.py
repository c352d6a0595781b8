"""How far a partition is forwarded to a topic, as the offset of a consumer group."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from confluent_kafka import OFFSET_INVALID, TopicPartition

from actorproc.handlers.kafka_errors import KafkaUnavailable

METADATA_LIMIT = 4096
"""Bytes of text beside an offset that a broker takes (its `offset.metadata.max.bytes`)."""


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Records up to sequence `upto` were sent, but for those `left_out`."""

    upto: int = -1
    left_out: frozenset[int] = frozenset()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.upto and sequence not in self.left_out

    def committed(self, sequence: int) -> TopicPosition:
        """Without the left-out records up to `sequence`: they are committed, so they do not come again."""
        return replace(self, left_out=frozenset(s for s in self.left_out if s > sequence))

    def begun(self, sequences: Sequence[int]) -> TopicPosition:
        """These records are at work, and not sent yet."""
        new = [sequence for sequence in sequences if sequence not in self]
        return TopicPosition(max(self.upto, *sequences), self.left_out.union(new))

    def sent(self, sequences: Iterable[int]) -> TopicPosition:
        return replace(self, left_out=self.left_out.difference(sequences))

    def to_offset(self, topic: str) -> TopicPartition:
        """As an offset with text: the next sequence, and the gaps between the left-out ones, packed.

        Raises:
            KafkaUnavailable: too many are left out. A commit of the partition makes room.
        """
        gaps = [b - a for a, b in pairwise([-1, *sorted(self.left_out)])]
        packed = base64.b64encode(zlib.compress(",".join(map(str, gaps)).encode())).decode() if gaps else ""
        if len(packed) > METADATA_LIMIT:
            raise KafkaUnavailable(f"{len(gaps)} failed records wait for a commit, more than a position can name")
        return TopicPartition(topic, 0, self.upto + 1, packed)

    @classmethod
    def of_offset(cls, stored: TopicPartition) -> TopicPosition:
        """From `to_offset`. Where nothing is stored: of no records."""
        if stored.offset == OFFSET_INVALID:
            return cls()
        packed = stored.metadata
        gaps = zlib.decompress(base64.b64decode(packed)).split(b",") if packed else []
        return cls(stored.offset - 1, frozenset(accumulate(map(int, gaps), initial=-1)) - {-1})
