"""Each bug that is planted into the product is found within a few seeds, by the right check."""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import Any, NoReturn

import anyio
import pyarrow.parquet as pq
import pytest
import structlog
from msgspec.structs import replace

from actorproc.group.format_versions import FORMAT_VERSIONS, FormatVersions
from actorproc.group.liveness import LivenessTracker
from actorproc.handler.attempt import Attempt
from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.output import letter
from actorproc.output.attachments import Attachment
from actorproc.output.chain import Commit, OutputChain, letters_of
from actorproc.partition.actor import PartitionActor
from actorproc.partition.batch_processor import BatchProcessor, BatchRun
from actorproc.partition.results import Results
from actorproc.produce.appender import Appender
from actorproc.records import Batch
from actorproc.rows import sequence_order as sequenced
from actorproc.simulation import Cluster, InvariantViolation, current_loop, run
from actorproc.simulation.cluster import NextVersion
from actorproc.state.objects import Entries
from actorproc.state.partition_state import PartitionState
from actorproc.storage.parquet import parse_footer
from actorproc.storage.store import Conflict, Store
from tests.simulation.numbers import Numbers, judge_number, numbers
from tests.simulation.scenario import simulate

SEEDS = 12


def first_broken(
    style: str | None = None,
    *,
    stream: str | None = None,
    operators: bool = False,
    hours: float = 1.0,
    first: int = 0,
    seeds: int = SEEDS,
) -> str:
    """The invariant that breaks first. A search that begins at the right seed, `first`, is short."""
    for seed in range(first, first + seeds):
        try:
            simulate(seed, hours=hours, style=style, stream=stream, operators=operators)
        except InvariantViolation as broken:
            return str(broken)
    return f"nothing was found in {seeds} seeds"


def test_a_failing_seed_fails_again_event_by_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: OutputChain, number: int, letters: bytes) -> None:
        pass

    def play(seed: int) -> tuple[str, list[tuple[object, ...]]]:
        """The broken rule with its time, and every log event before it: time, fingerprint of the loop, name, place."""
        story = []

        def note(_: object, __: str, event: structlog.typing.EventDict) -> NoReturn:
            at = current_loop().now, current_loop().fingerprint
            story.append((*at, *(event.get(field) for field in ("event", "host", "partition", "epoch"))))
            raise structlog.DropEvent

        structlog.configure(processors=[note], wrapper_class=structlog.make_filtering_bound_logger(0))
        with pytest.raises(InvariantViolation) as broken:
            simulate(seed, hours=1.0)
        return str(broken.value), story

    monkeypatch.setattr(OutputChain, "publish", forget)
    stories = (play(seed) for seed in range(SEEDS))
    seed, first = next((seed, story) for seed, story in enumerate(stories) if len(story[1]) > 50)
    assert play(seed) == first
    assert play(seed + 1) != first


@pytest.mark.slow
def test_taking_over_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = LivenessTracker._expire_of
    monkeypatch.setattr(LivenessTracker, "_expire_of", lambda watch, who: careful(watch, who) - 20)
    assert "which had been silent for" in first_broken()


def test_writing_in_a_host_that_cannot_read_the_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        """A host of this version joins one of the next version."""
        cluster = Cluster(Numbers, numbers(2), check=judge_number)
        cluster.versions["b"] = NextVersion
        cluster.start("b")
        await cluster.converged(within=90)
        cluster.start("a")
        await cluster.converged(within=90)
        await cluster.finished()

    run(story())
    monkeypatch.setattr("actorproc.group.membership.highest_of", lambda _: FORMAT_VERSIONS.highest + 1)
    monkeypatch.setattr(FormatVersions, "refusal", lambda *_: None)
    with pytest.raises(InvariantViolation, match="which its member a does not read"):
        run(story())


def test_committing_without_put_if_absent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def overwrite(self: OutputChain, number: int, put_id: str, body: bytes, letters: bytes | None) -> None:
        await self._store.put(self._layout.output_file(self._partition, number), body)

    monkeypatch.setattr(OutputChain, "create", overwrite)
    assert "was overwritten" in first_broken("thread", stream="positions")


@pytest.mark.slow
def test_forgetting_the_put_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refused create, the existing object counts as one's own, whoever wrote it."""
    create = Store.create

    async def trusting(self: Store, key: str, body: bytes) -> str:
        try:
            return await create(self, key, body)
        except Conflict as conflict:
            if "/output/" in key and conflict.stored is not None:
                return conflict.stored.tag
            raise

    monkeypatch.setattr(Store, "create", trusting)
    assert first_broken("loop", stream="positions", first=1).startswith("partition")


def test_trusting_the_lease_for_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        """A busy host loses its network for longer than its leases last, and no commit is due meanwhile."""
        source = numbers(6)
        cluster = Cluster(Numbers, source, check=judge_number, settings={"commit_interval": 100})
        a, _, _ = (cluster.start(name) for name in "abc")
        await cluster.converged(within=240)
        a.view.cut(120)
        for n in range(120):
            source.append(str(n % 6), [b"%d" % n])
            await cluster.run_for(1)
        await cluster.converged(within=240)
        await cluster.finished()
        assert cluster.seen()["expired"] == 1

    run(story())
    monkeypatch.setattr("actorproc.group.heartbeat.TRUST", 1.5)
    with pytest.raises(InvariantViolation, match="it trusted its lease for too long"):
        run(story())


def test_publishing_dead_letters_beside_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    create = OutputChain.create

    async def create_beside(
        self: OutputChain, number: int, put_id: str, body: bytes, attachments: tuple[Attachment, ...]
    ) -> None:
        footer: Any = parse_footer("", body, tag="", size=len(body))
        await self.publish(number, letters_of("", footer))
        await create(self, number, put_id, body, attachments)

    monkeypatch.setattr(OutputChain, "create", create_beside)
    assert "published before there is such a commit" in first_broken()


def test_not_publishing_dead_letters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: OutputChain, number: int, letters: bytes) -> None:
        pass

    monkeypatch.setattr(OutputChain, "publish", forget)
    assert "are not published" in first_broken()


def test_losing_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = BatchProcessor.process

    async def all_but_the_last(self: BatchProcessor, batch: Batch, cuts: Any) -> Results:
        return await process(self, batch[: max(1, len(batch) - 1)], cuts)

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


# Commits by the handler


def test_committing_records_that_map_still_works_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overlooked(Counter[int]):
        def keys(self) -> Any:
            return frozenset[int]()

    init = PartitionContext.__init__

    def overlook(self: PartitionContext, *args: Any, **keywords: Any) -> None:
        init(self, *args, **keywords)
        self._attempt.mapping = Overlooked()

    monkeypatch.setattr(PartitionContext, "__init__", overlook)
    assert re.search("record .* ended as|should have .* rows|holds records", first_broken("map, commits"))


@pytest.mark.slow
def test_forgetting_dead_letters_at_a_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = BatchRun._commit_alone

    async def forget(self: BatchRun, attempt: Attempt, upto: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_give_up", lambda *_: None)
            await commit(self, attempt, upto)

    monkeypatch.setattr(BatchRun, "_commit_alone", forget)
    assert "ended as 0 rows and 0 dead letters, not as one of [(0, 1)]" in first_broken("commits")


def test_forgetting_rows_emitted_during_a_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that encodes rows which it does not take, as their records are still at work, and drops them."""
    take = BatchRun._take_upto

    def take_all(self: BatchRun, attempt: Attempt, upto: int) -> Results:
        now = take(self, attempt, upto)
        attempt.encoded = []
        return now

    monkeypatch.setattr(BatchRun, "_take_upto", take_all)
    assert re.search("record .* ended as 0 rows|should have .* rows", first_broken("map, commits"))


def test_acknowledging_a_commit_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = BatchRun._commit_alone

    async def only_note(self: BatchRun, attempt: Attempt, upto: int) -> None:
        async def later() -> None: ...

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._calls.committer, "commit", later)
            await commit(self, attempt, upto)

    monkeypatch.setattr(BatchRun, "_commit_alone", only_note)
    assert "ctx.commit said that" in first_broken("commits")


# Remains of an attempt


def test_keeping_rows_of_a_failed_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init, last = PartitionContext.__init__, dict[Any, Attempt]()

    def keep(self: PartitionContext, info: PartitionInfo, attempt: Attempt, commit: Any, draining: anyio.Event) -> None:
        init(self, info, attempt, commit, draining)
        if attempt.number > 1 and (before := last.get(commit.__self__)) is not None:
            tables = [*before.encoded, *before.rows.detach().encode()[0]]
            for row in (row for table in tables for row in table.to_pylist()):
                if (sequence := row.pop("_sequence")) in attempt.batch.sequences:
                    attempt.rows.rows.append(row)
                    attempt.rows.sequences.append(sequence)
        last[commit.__self__] = attempt

    monkeypatch.setattr(PartitionContext, "__init__", keep)
    assert "has rows of several attempts" in first_broken("thread")


def test_rows_out_of_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequenced, "in_order", lambda rows: rows)
    assert "are not in the order of their records" in first_broken("columns")


def test_moving_the_checkpoint_after_the_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = PartitionActor._handle

    async def handle_first(self: PartitionActor, processor: BatchProcessor, read: Any) -> None:
        later: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        async def note(*args: Any, **how: Any) -> None:
            later.append((args, how))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._committer._keeper, "advance", note)
            await handle(self, processor, read)
        for args, how in later:
            await self._committer._keeper.advance(*args, **how)

    monkeypatch.setattr(PartitionActor, "_handle", handle_first)
    assert re.search("is shown on|and the checkpoint is at|is durable, and", first_broken("at most once"))


@pytest.mark.slow
def test_losing_a_record_that_was_not_in_flight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = BatchProcessor.process

    async def all_but_the_last(self: BatchProcessor, batch: Batch, cuts: Any) -> Results:
        return await process(self, batch[: max(1, len(batch) - 1)], cuts)

    monkeypatch.setattr(BatchProcessor, "process", all_but_the_last)
    assert "ended as 0 rows and 0 dead letters" in first_broken("at most once", hours=0.2)


# Keyed state

OUTDATED = "its state is not that of the rows before it"


@pytest.mark.slow
def test_not_restoring_the_deltas_of_the_walk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def skip(self: PartitionState, number: int, commit: Commit) -> None:
        pass

    monkeypatch.setattr(PartitionState, "follow", skip)
    assert OUTDATED in first_broken("state", stream="positions", hours=0.5)


def test_a_manifest_without_the_newest_object_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    incomplete = property(lambda state: tuple(part.object for part in state._parts[:-1]))
    monkeypatch.setattr(PartitionState, "manifest", incomplete)
    assert OUTDATED in first_broken("state", stream="positions", hours=0.5)


def test_keeping_the_changes_of_a_failed_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = BatchRun._failed

    async def keep(self: BatchRun, part: Any, error: Exception, attempt: Attempt) -> None:
        self._done.changes = attempt.state.changes()
        await failed(self, part, error, attempt)

    monkeypatch.setattr(BatchRun, "_failed", keep)
    assert OUTDATED in first_broken("state", stream="positions", hours=0.5)


@pytest.mark.slow
def test_dropping_deleted_keys_from_a_merge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older object, which is not merged, still has their values."""
    merged = PartitionState._merged_keys

    def without_deletions(self: PartitionState, name: str, first: int) -> Entries:
        entries = merged(self, name, first)
        kept = [(key, value) for key, value in zip(entries.keys, entries.values, strict=True) if value is not None]
        return Entries([key for key, _ in kept], [value for _, value in kept])

    monkeypatch.setattr(PartitionState, "_merged_keys", without_deletions)
    broken = first_broken("state", stream="positions", hours=0.5, first=4)
    assert re.search(f"{OUTDATED}|the state has .* its rows say", broken)


# The log, and dead letters that are forgotten


@pytest.mark.long  # a minute and a half of seeds until it shows
def test_appending_again_under_a_new_put_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Appender._settle

    async def settle_anew(self: Appender, body: bytes, rows: int, newest: int) -> int:
        return await settle(self, await self._encode(pq.read_table(io.BytesIO(body)), newest), rows, newest)

    monkeypatch.setattr(Appender, "_settle", settle_anew)
    assert "which is in the log already" in first_broken("loop", stream="log")


@pytest.mark.slow
def test_purging_dead_letters_that_no_checkpoint_has_passed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter, "number_of", lambda key: -1)
    assert "was purged before a checkpoint passed it" in first_broken("columns", stream="positions")
