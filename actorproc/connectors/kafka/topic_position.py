"""How far a partition is forwarded to a topic, as the offset of a consumer group."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import msgspec
from confluent_kafka import OFFSET_INVALID, TopicPartition
from msgspec import json

from actorproc.connectors.kafka.send_errors import KafkaUnavailable

METADATA_LIMIT = 4096
"""Bytes of text beside an offset that a broker takes (its `offset.metadata.max.bytes`)."""


class _AfterReset(msgspec.Struct):
    """The text of a position after a reset."""

    gaps: list[int]
    reset: str = ""
    later: tuple[tuple[int, int], ...] = ()


def _numbers(text: bytes) -> list[int]:
    return [int(number) for number in text.split(b",")] if text else []


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """Records up to sequence `upto`, and in the ranges `later`, were sent, but for those `left_out`."""

    upto: int = -1
    left_out: frozenset[int] = frozenset()
    reset: str = ""
    """Id of the latest reset that it knows."""
    later: tuple[tuple[int, int], ...] = ()
    """Sent before that reset, and not committed: pairs of a sequence that is not in the range, and its last one."""

    def __contains__(self, sequence: int) -> bool:
        sent = sequence <= self.upto or any(after < sequence <= last for after, last in self.later)
        return sent and sequence not in self.left_out

    @property
    def end(self) -> int:
        """No later record was sent."""
        return max(self.upto, *(last for _, last in self.later), -1)

    def followed_by(self, resets: Mapping[str, int]) -> TopicPosition:
        """Where the topic is after the latest resets of the partition: records that were committed are sent again.

        Args:
            resets: id -> sequence up to which the partition was committed before it, oldest first.
        """
        ids = list(resets)
        new = ids[ids.index(self.reset) + 1 :] if self.reset in resets else ids
        if not new:
            return self
        committed = max(resets[one] for one in new)
        ranges = [(max(after, committed), last) for after, last in ((-1, self.upto), *self.later)]
        left_out = frozenset(sequence for sequence in self.left_out if sequence > committed)
        return TopicPosition(-1, left_out, ids[-1], tuple((after, last) for after, last in ranges if after < last))

    def committed(self, sequence: int) -> TopicPosition:
        """Without the left-out records up to `sequence`: they are committed, so they do not come again."""
        return replace(self, left_out=frozenset(s for s in self.left_out if s > sequence))

    def begun(self, sequences: Sequence[int]) -> TopicPosition:
        """These records are at work, and not sent yet."""
        new = [sequence for sequence in sequences if sequence not in self]
        return replace(self, upto=max(self.upto, *sequences), left_out=self.left_out.union(new))

    def sent(self, sequences: Iterable[int]) -> TopicPosition:
        return replace(self, left_out=self.left_out.difference(sequences))

    def to_offset(self, topic: str) -> TopicPartition:
        """As an offset with text: the next sequence, and the gaps between the left-out ones, packed.

        After a reset the text is a JSON object, with the gaps in it.

        Raises:
            KafkaUnavailable: too many are left out. A commit of the partition makes room.
        """
        gaps = [b - a for a, b in pairwise([-1, *sorted(self.left_out)])]
        text = ",".join(map(str, gaps))
        if self.reset:
            text = json.encode({"reset": self.reset, "later": self.later, "gaps": gaps}).decode()
        packed = base64.b64encode(zlib.compress(text.encode())).decode() if text else ""
        if len(packed) > METADATA_LIMIT:
            raise KafkaUnavailable(f"{len(gaps)} failed records wait for a commit, more than a position can name")
        return TopicPartition(topic, 0, self.upto + 1, packed)

    @classmethod
    def of_offset(cls, stored: TopicPartition) -> TopicPosition:
        """From `to_offset`. Where nothing is stored: of no records."""
        if stored.offset == OFFSET_INVALID:
            return cls()
        packed = stored.metadata
        text = zlib.decompress(base64.b64decode(packed)) if packed else b""
        found = json.decode(text, type=_AfterReset) if text.startswith(b"{") else _AfterReset(gaps=_numbers(text))
        left_out = frozenset(accumulate(found.gaps, initial=-1)) - {-1}
        return cls(stored.offset - 1, left_out, found.reset, found.later)
