"""Rules of queues (tests/protocol/queue_model.py): each one, left out, is found within a few seeds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actorproc.output.checkpoint import Checkpoint
from actorproc.partition.committer import Committer
from actorproc.partition.queue_reader import QueueReader
from tests.simulation.test_planted_bugs import first_broken

pytestmark = pytest.mark.long


def broken(style: str = "commits", seeds: int = 12) -> str:
    return first_broken(style, stream="queues", hours=0.2, seeds=seeds)


# What the processor must do

EARLY = "were acknowledged, and"
ANOTHER = "record "
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
        return tuple(identity for sequence, identity in self._in_hand if sequence <= upto) or self._known

    monkeypatch.setattr(QueueReader, "identities", own)
    assert ANOTHER in broken()


def test_fewer_identities_than_unacknowledged_messages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    identities = QueueReader.identities
    monkeypatch.setattr(QueueReader, "identities", lambda self, upto: identities(self, upto)[-self._most // 2 :])
    assert ANOTHER in broken()


def test_a_checkpoint_without_identities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Committer._walk

    async def without(self: Committer, checkpoint: Checkpoint) -> bool:
        return await walk(self, replace(checkpoint, identities=()))

    monkeypatch.setattr(Committer, "_walk", without)
    assert ANOTHER in broken()
