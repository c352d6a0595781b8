"""Rules of partitions that end (tests/protocol/split_model.py): each one, left out, is found within a few seeds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from actorproc.errors import PartitionGone
from actorproc.group import assignment, group
from actorproc.host.owned_partitions import OwnedPartitions
from actorproc.host.partition_list import PartitionList
from actorproc.partition.actor import PartitionActor
from actorproc.partition.committer import Committer
from actorproc.produce import growth
from actorproc.produce.hint_writer import HintWriter
from actorproc.simulation import Cluster, InvariantViolation, run
from actorproc.storage.store import Store
from tests.simulation.numbers import Numbers, judge_number, numbers
from tests.simulation.test_planted_bugs import first_broken


def broken(first: int = 0, seeds: int = 12) -> str:
    return first_broken("records awaited", stream="splits", hours=0.5, first=first, seeds=seeds)


@pytest.mark.slow
def test_a_child_that_begins_beside_its_parent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_new(partitions: Any, leases: Any) -> list[str]:
        return [name for name in partitions if name not in leases]

    monkeypatch.setattr(assignment, "begins", all_new)
    monkeypatch.setattr(group, "begins", all_new)
    assert "is processed, and" in broken(first=2)


@pytest.mark.long
def test_a_list_of_partitions_that_is_older_than_the_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = PartitionList.__call__

    async def from_memory(self: PartitionList, since: float = 0.0) -> Any:
        return await listed(self)

    monkeypatch.setattr(PartitionList, "__call__", from_memory)
    assert "which follow it" in broken(seeds=40)


def test_an_end_that_is_only_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def only_note(self: Committer, *, vanished: bool = False) -> None:
        self.ended, self.committed = True, self.cursor
        await self.checkpoint()

    monkeypatch.setattr(Committer, "end", only_note)
    assert "and its last commit does not" in broken()


def test_ending_in_the_group_before_the_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def later(self: Committer) -> None:
        pass

    end = Committer.end

    async def without_checkpoint(self: Committer, *, vanished: bool = False) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Committer, "checkpoint", later)
            await end(self, vanished=vanished)

    monkeypatch.setattr(Committer, "end", without_checkpoint)
    assert "and its checkpoint does not say so" in broken()


@pytest.mark.slow
def test_an_end_that_is_found_and_not_passed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that commits the end dies, and the next one gives the partition back."""
    monkeypatch.setattr(OwnedPartitions, "ended", property(lambda self: []))
    assert "has not converged" in broken(seeds=2)


def test_a_forgotten_partition_that_is_left_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        """The only host dies; a partition splits and is forgotten before the next host reads it to its end."""
        source = numbers(2)
        cluster = Cluster(Numbers, source, check=judge_number)
        a = cluster.start("a")
        await cluster.converged(within=90)
        cluster.crash(a)
        source.append("0", [b"1"])
        for child in ("0a", "0b"):
            source.add_partition(child, parents=["0"])
            source.append(child, [b"7"])
        source.forget("0")
        cluster.start("b")
        await cluster.converged(within=240)
        await cluster.finished()
        assert cluster.seen()["rows"] == 102

    async def never(self: PartitionActor, gone: PartitionGone) -> bool:
        return False

    run(story())
    monkeypatch.setattr(PartitionActor, "_note_if_lost", never)
    with pytest.raises(InvariantViolation, match="has not converged"):
        run(story())


@pytest.mark.slow
def test_running_an_ended_partition_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Committer.open

    async def overlook(self: Committer, *how: Any) -> None:
        await opened(self, *how)
        self.ended = False

    monkeypatch.setattr(Committer, "open", overlook)
    assert "follows the end of the partition" in broken(first=4)


@pytest.mark.slow
def test_a_growth_that_does_not_end_the_old_partitions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(store: Store, hints: HintWriter, partition: str) -> None:
        pass

    monkeypatch.setattr(growth, "seal", forget)
    found = first_broken("loop", stream="log", hours=0.3, first=13)
    assert re.search("was written before the end of|has not ended", found)
