"""The simulation can fail: each bug planted into the product is found within a few seeds, and by the check that should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorproc.group.liveness import Watch
from actorproc.output.chain import Commit, OutputChain
from actorproc.parquet import parse_footer
from actorproc.processing import BatchProcessor, Outcome
from actorproc.records import Batch
from actorproc.store import Conflict, Created, Store
from actorproc.testing.cluster import Broken
from actorproc.testing.scenario import simulate

SEEDS = 12


def first_broken(seeds: int = SEEDS) -> str:
    for seed in range(seeds):
        try:
            simulate(seed, hours=1.0)
        except Broken as broken:
            return str(broken)
    return f"nothing was found in {seeds} seeds"


def test_taking_over_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = Watch.__init__

    def hasty(self: Watch, expire: float) -> None:
        careful(self, expire - 20)

    monkeypatch.setattr(Watch, "__init__", hasty)
    assert "which had been silent for" in first_broken()


def test_committing_without_put_if_absent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def overwrite(self: OutputChain, number: int, body: bytes) -> None:
        await self._store.put(self._layout.output_file(self._partition, number), body)

    monkeypatch.setattr(OutputChain, "create", overwrite)
    assert "was overwritten" in first_broken()


def test_forgetting_the_put_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal, what is there is taken for one's own without a look at whose it is."""
    create = Store.create

    async def trusting(self: Store, key: str, body: bytes) -> Created:
        try:
            return await create(self, key, body)
        except Conflict as conflict:
            if "/output/" in key and conflict.stored is not None:
                return Created(conflict.stored.tag)
            raise

    monkeypatch.setattr(Store, "create", trusting)
    assert first_broken().startswith("partition")


def test_trusting_the_lease_for_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.group.heartbeat.TRUST", 1.3)
    assert "it trusted its lease for too long" in first_broken()


def test_publishing_dead_letters_beside_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    create = OutputChain.create

    async def create_beside(self: OutputChain, number: int, body: bytes) -> None:
        footer: Any = parse_footer("", body, tag="", size=len(body))
        await self.publish(number, Commit.from_footer("", footer))
        await create(self, number, body)

    monkeypatch.setattr(OutputChain, "create", create_beside)
    assert "published before there is such a commit" in first_broken()


def test_not_publishing_dead_letters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: OutputChain, number: int, commit: Commit) -> None:
        pass

    monkeypatch.setattr(OutputChain, "publish", forget)
    assert "are not published" in first_broken()


def test_losing_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = BatchProcessor.process

    async def all_but_the_last(self: BatchProcessor, batch: Batch) -> Outcome:
        return await process(self, batch[: max(1, len(batch) - 1)])

    monkeypatch.setattr(BatchProcessor, "process", all_but_the_last)
    assert "ended as 0 rows and 0 dead letters" in first_broken()


def test_starting_behind_the_output_that_is_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk finds the last file, but goes on from the checkpoint's position."""
    read = OutputChain.read

    async def read_without_position(self: OutputChain, number: int) -> Commit | None:
        commit = await read(self, number)
        return commit and replace(commit, next=commit.first)

    monkeypatch.setattr(OutputChain, "read", read_without_position)
    assert "before the end of the one before" in first_broken()
