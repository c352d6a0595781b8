"""Rules of queues (tests/protocol/queue_model.py), left out one by one: each is found within a few seeds.

Not here: `look`, `window` and `whole`, which break too rarely at random; and `drop` and `ordered`, because the reader
of a queue has no way to leave them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from actorproc.output.checkpoint import Checkpoint
from actorproc.partition import claim, queue_reader
from actorproc.partition.queue_reader import Look, QueueReader
from actorproc.records import Batch
from actorproc.simulation.loop import call_outside
from actorproc.sources.queue_protocol import Deliveries
from tests.simulation.queue_stream import SimulatedQueue
from tests.simulation.test_planted_bugs import first_broken

pytestmark = pytest.mark.long


def broken(style: str = "commits", seeds: int = 12) -> str:
    return first_broken(style, stream="queues", hours=0.2, seeds=seeds)


# Duties of the processor

EARLY = "were acknowledged, and"
ANOTHER = "record"
"""A record has the result of another one: a message was repeated or lost, so that all that follow have wrong places."""


def test_acknowledging_before_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: QueueReader) -> None:
        count = len(self._delivered)
        self._delivered.clear()
        if count and self._consumer is not None:
            await self._consumer.acknowledge(count)

    monkeypatch.setattr(QueueReader, "_acknowledge", at_once)
    assert EARLY in broken()


def test_commits_without_identities_of_earlier_commits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(self: QueueReader, upto: int) -> tuple[str, ...]:
        return tuple(name for sequence, name in self._in_hand if name and sequence <= upto) or self._known

    monkeypatch.setattr(QueueReader, "identities", own)
    assert ANOTHER in broken()


def test_no_more_identities_than_unacknowledged_messages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that restarts forgets acknowledgements."""
    monkeypatch.setattr(queue_reader, "UNSTORED", 0)
    assert ANOTHER in broken()


def test_a_checkpoint_without_identities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = claim._walk

    async def without(chain: Any, state: Any, checkpoint: Checkpoint) -> Any:
        return await walk(chain, state, replace(checkpoint, identities=()))

    monkeypatch.setattr(claim, "_walk", without)
    assert ANOTHER in broken()


def test_numbering_recognized_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = QueueReader._take

    def numbered(self: QueueReader, deliveries: Deliveries) -> Batch:
        batch = take(self, deliveries)
        self._numbered += len(deliveries.identities) - len(batch)
        return batch

    monkeypatch.setattr(QueueReader, "_take", numbered)
    assert ANOTHER in broken()


def test_a_message_that_is_not_recognized_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = QueueReader.begin

    def forgetful(self: QueueReader, sequence: int, identities: tuple[str, ...], look: Look) -> None:
        begin(self, sequence, (), look)

    monkeypatch.setattr(QueueReader, "begin", forgetful)
    assert ANOTHER in broken()


# Duties of the broker


def test_two_consumers_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedQueue, "exclusive", False)
    assert ANOTHER in broken()


def test_messages_that_come_back_to_the_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_the_end(self: SimulatedQueue, messages: Sequence[int]) -> None:
        self.ready += messages

    monkeypatch.setattr(SimulatedQueue, "take_back", to_the_end)
    assert ANOTHER in broken()


def test_messages_that_come_back_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_back = SimulatedQueue.take_back

    def late(self: SimulatedQueue, messages: Sequence[int]) -> None:
        call_outside(1.0, take_back, self, list(messages))

    monkeypatch.setattr(SimulatedQueue, "take_back", late)
    assert ANOTHER in broken()


def test_messages_that_are_discarded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedQueue, "take_back", lambda self, messages: None)
    assert ANOTHER in broken()


def test_equal_identities_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedQueue, "identity", lambda self, number: str(number % 5))
    assert EARLY in broken()
