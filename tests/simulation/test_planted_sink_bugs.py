"""Each rule of the delivery to sinks that is left out is found. Rules: tests/protocol/sink_model.py.

Some are found by chance in a short story (`play`). Others need two owners that sleep at the right moment (`ByHand`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc.admin import sinks as operate
from actorproc.admin.retained import RetainedOutput
from actorproc.output.chain import OutputChain
from actorproc.partition.committer import Committer
from actorproc.retention.boundary import Boundary, raise_boundary
from actorproc.retention.readers import Registry, SinkEntry, SinkPart
from actorproc.simulation import Faults, InvariantViolation, run
from actorproc.simulation.database import NAME, Contents, SimulatedDatabase
from actorproc.sinks import delivery as deliveries
from actorproc.sinks import lineage
from actorproc.sinks.commit_rows import RecentCommits
from actorproc.sinks.delivery import SinkDelivery
from actorproc.sinks.entries import SinkProgress
from actorproc.sinks.protocol import Delivery, SinkError, SinkMoved, SinkRow
from actorproc.sinks.terms import next_commit
from tests.simulation.scenario import REPLACE, UPSERT, simulate
from tests.simulation.sink_by_hand import PARTITION, ByHand
from tests.simulation.sink_story import play

SEEDS = 8

Story = Callable[[ByHand], Awaitable[None]]


def first_broken(first: int = 0, seeds: int = SEEDS) -> str:
    """The invariant that breaks first. A search that begins at the right seed, `first`, is short."""
    for seed in range(first, first + seeds):
        try:
            play(seed)
        except InvariantViolation as broken:
            return str(broken)
    return f"nothing was found in {seeds} seeds"


def tell(story: Story) -> None:
    """Raises InvariantViolation: the sink does not hold what it must."""

    async def main() -> None:
        hand = ByHand()
        await hand.begin()
        await story(hand)
        hand.cluster.raise_violations()

    run(main())


def breaks(story: Story, why: str) -> None:
    with pytest.raises(InvariantViolation, match=why):
        tell(story)


# Two owners, or one that sleeps


async def a_late_transaction_in_a_pause(hand: ByHand) -> None:
    """All transactions are in doubt and land a minute later; meanwhile the sink is paused."""
    hand.database.faults = Faults(lateness=(60.0, 60.0), silence=(0.5, 0.5))
    host, late = hand.run("a"), list[str]()

    def interfere(verb: str, _: str) -> str | None:
        if verb == "write" and len(late) < 3:
            late.append(verb)
            return "late_write"
        return None

    host.sink.interfere = interfere
    await hand.until(lambda: late)
    await operate.pause(hand.store("operator"), hand.layout, NAME)
    await hand.until(lambda: hand.checks.seen["sink_fenced"])
    await hand.cluster.run_for(90)
    assert hand.position == 0
    await operate.resume(hand.store("operator"), hand.layout, NAME)
    host.sink.interfere = None
    await hand.until(lambda: hand.position == hand.tip)


async def an_owner_that_sleeps_as_it_opens(hand: ByHand) -> None:
    """It has read the entry. Meanwhile another owner delivers a part, and carries out a pause."""
    host = hand.run("a")
    host.sleep_before(lambda verb, key: key == hand.layout.readers)
    await hand.until(lambda: not host.host.running)
    hand.run("b", tip=1)
    await hand.until(lambda: hand.position == 1)
    await operate.pause(hand.store("operator"), hand.layout, NAME)
    await hand.until(lambda: hand.checks.seen["sink_fenced"])
    host.host.resume()
    await hand.cluster.run_for(60)
    assert hand.position == 1


async def a_void_commit(hand: ByHand) -> None:
    """An owner has slept, and its commit lands where commits were trimmed. The database is restored, too."""
    sleeper = hand.run("a", tip=2)
    await hand.until(lambda: hand.position == 2)
    backup = hand.database.backup()
    await hand.cluster.run_for(30)
    sleeper.host.pause()
    hand.run("b")
    await hand.until(lambda: hand.position == hand.tip)
    await raise_boundary(hand.store("trim"), hand.layout.boundary(PARTITION), 3)
    hand.database.restore(backup)
    rows = sleeper.delivery._schema.empty_table()
    sleeper.host.resume()
    sleeper.host.call_soon(lambda: sleeper.delivery.committed(2, rows, "void", 0))
    await hand.cluster.run_for(30)
    assert hand.position == 2


async def a_container_that_went_back(hand: ByHand) -> None:
    """The last commit of the sink is none of this chain."""
    hand.run("a", tip=2)
    await hand.until(lambda: hand.position == 2)
    row = hand.database.contents[PARTITION].row
    assert row is not None
    hand.database.contents[PARTITION].row = replace(row, put_id="of the lost chain")
    host = hand.run("b")
    await hand.until(lambda: host.delivery.statistics().error)
    assert "it was restored from a backup" in (host.delivery.statistics().error or "")
    assert hand.position == 2


async def a_redelivery_in_a_container_that_went_back(hand: ByHand) -> None:
    """A redelivery does not heal it: the rows of the lost chain stay."""
    hand.run("a", tip=2)
    await hand.until(lambda: hand.position == 2)
    row = hand.database.contents[PARTITION].row
    assert row is not None
    hand.database.contents[PARTITION].row = replace(row, put_id="of the lost chain")
    await operate.deliver_again(hand.store("operator"), hand.layout, NAME, 1, [PARTITION])
    host = hand.run("b")
    await hand.until(lambda: host.delivery.statistics().error)
    assert hand.position == 2


async def a_database_that_went_back_below_a_trim(hand: ByHand) -> None:
    hand.run("a", tip=1)
    await hand.until(lambda: hand.position == 1)
    backup = hand.database.backup()
    hand.run("b")
    await hand.until(lambda: hand.position == hand.tip)
    await hand.cluster.run_for(30)
    await raise_boundary(hand.store("trim"), hand.layout.boundary(PARTITION), 3)
    hand.database.restore(backup)
    host = hand.run("c")
    await hand.until(lambda: host.delivery.statistics().error)
    assert "commits below 3 were trimmed" in (host.delivery.statistics().error or "")


STORIES = [
    a_late_transaction_in_a_pause, an_owner_that_sleeps_as_it_opens, a_void_commit, a_container_that_went_back,
    a_redelivery_in_a_container_that_went_back, a_database_that_went_back_below_a_trim,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.__name__))
def test_nothing_wrong_lands_in(story: Story) -> None:
    tell(story)


@pytest.mark.parametrize("fields", [("position",), ("life", "term", "position", "put_id")])
def test_a_row_that_is_not_compared_as_a_whole_is_found(
    monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...]
) -> None:
    apply = SimulatedDatabase.apply

    def by_some(self: SimulatedDatabase, delivery: Delivery) -> None:
        found, was = self.read(delivery.partition), delivery.was or SinkRow("", 0, "", 0, 0)
        if all(getattr(found or SinkRow("", 0, "", 0, 0), f) == getattr(was, f) for f in fields):
            delivery = Delivery(delivery.partition, delivery.rows, delivery.since, delivery.counts, found, delivery.now)
        apply(self, delivery)

    monkeypatch.setattr(SimulatedDatabase, "apply", by_some)
    breaks(a_late_transaction_in_a_pause, "while it is paused")


def test_a_pause_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SinkDelivery._write

    async def no_fence(self: SinkDelivery, delivery: Delivery) -> None:
        if delivery.counts:
            await write(self, delivery)

    monkeypatch.setattr(SinkDelivery, "_write", no_fence)
    breaks(a_late_transaction_in_a_pause, "while it is paused")


def test_an_entry_that_is_read_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read, opened = SinkDelivery._read_entry, SinkDelivery._open
    known = dict[SinkDelivery, SinkEntry]()

    async def once(self: SinkDelivery) -> SinkEntry:
        if self in known:
            return known.pop(self)
        known[self] = await read(self)
        return known[self]

    async def first_read(self: SinkDelivery) -> None:
        known.pop(self, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_read_entry", lambda: once(self))
            await opened(self)

    monkeypatch.setattr(SinkDelivery, "_open", first_read)
    breaks(an_owner_that_sleeps_as_it_opens, "while it is paused")


def test_a_void_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_trimmed(store: object, key: str) -> Boundary:
        return Boundary(0)

    monkeypatch.setattr(deliveries, "read_boundary", nothing_trimmed)
    breaks(a_void_commit, r"rows that are not its own|is not the commit's")


def test_going_on_in_another_chain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: SinkDelivery, entry: SinkEntry, row: SinkRow | None) -> None: ...

    monkeypatch.setattr(SinkDelivery, "_check_same_chain", trusting)
    with pytest.raises(InvariantViolation, match="of another chain"):
        tell(_and_then(a_container_that_went_back))


def _and_then(story: Story) -> Story:
    """The story, whose own check of the error must not come first."""

    async def told(hand: ByHand) -> None:
        try:
            await story(hand)
        except AssertionError:
            hand.cluster.raise_violations()

    return told


def test_going_on_above_what_was_trimmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = next_commit

    def skip(entry: SinkEntry, partition: str, row: SinkRow | None, home: str) -> int:
        return max(3, genuine(entry, partition, row, home))

    monkeypatch.setattr(lineage, "next_commit", skip)
    with pytest.raises(InvariantViolation, match=r"due is|the progress is at"):
        tell(_and_then(a_database_that_went_back_below_a_trim))


# By chance


def test_rows_and_position_in_two_transactions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = SimulatedDatabase.apply

    broken = set[str]()

    def rows_alone(self: SimulatedDatabase, delivery: Delivery) -> None:
        if self.read(delivery.partition) != delivery.was:
            raise SinkMoved("another row")
        if delivery.rows.num_rows and delivery.since % 4 == 1 and delivery.now.put_id not in broken:
            broken.add(delivery.now.put_id)
            self.insert(self.contents.setdefault(delivery.partition, Contents()), delivery)
            raise SinkError("the connection broke between the two")
        apply(self, delivery)

    monkeypatch.setattr(SimulatedDatabase, "apply", rows_alone)
    assert re.search("twice in one term|is in the sink in terms", first_broken())


def test_going_on_without_a_reply_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SinkDelivery._write

    async def trusting(self: SinkDelivery, delivery: Delivery) -> None:
        try:
            await write(self, delivery)
        except SinkError:
            await self._swap(replace(self._progress.current or SinkProgress(), position=delivery.now.position))

    monkeypatch.setattr(SinkDelivery, "_write", trusting)
    assert "the progress is at" in first_broken()


def test_delivering_before_the_commit_is_settled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    create, write = OutputChain.create, Committer._write
    tables = dict[OutputChain, Any]()

    async def noted(self: Committer, results: Any, totals: Any, **how: Any) -> None:
        table = pa.concat_tables(results.tables) if results.tables else self._schema.empty_table()
        tables[self._chain] = lambda number, put_id: self._deliveries.committed(
            number, table, put_id, self.committed.sequence
        )
        await write(self, results, totals, **how)

    async def early(self: OutputChain, number: int, put_id: str, body: bytes, attached: Any) -> None:
        if self in tables:
            tables.pop(self)(number, put_id)
        await create(self, number, put_id, body, attached)

    add = RecentCommits.add

    def once(self: RecentCommits, number: int, *commit: Any) -> None:
        if not self._commits or self._commits[-1][0] != number:
            add(self, number, *commit)

    monkeypatch.setattr(RecentCommits, "add", once)
    monkeypatch.setattr(Committer, "_write", noted)
    monkeypatch.setattr(OutputChain, "create", early)
    assert re.search("before it is in the chain|rows that are not its own", first_broken())


def test_a_document_that_leads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send = SinkDelivery._send

    async def note_first(self: SinkDelivery, entry: SinkEntry, found: Any) -> None:
        before, self._position = self._position, found.next
        await self._write_progress(entry)
        self._position = before
        await send(self, entry, found)

    monkeypatch.setattr(SinkDelivery, "_send", note_first)
    assert "the progress is at" in first_broken()


def test_a_trim_that_asks_no_sink_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(self: RetainedOutput, registry: Registry, *_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(RetainedOutput, "sinks_need", nobody)
    assert "a trim below" in first_broken()


def test_a_document_of_an_earlier_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_term(self: SinkProgress, entry: SinkEntry, part: SinkPart) -> bool:
        return self.term == entry.term

    monkeypatch.setattr(SinkProgress, "counts", by_term)
    assert re.search("a trim below|the progress is at", first_broken())


def test_a_redelivery_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = next_commit

    def at_the_row(entry: SinkEntry, partition: str, row: SinkRow | None, home: str) -> int:
        position = genuine(entry, partition, row, home)
        return row.position if row is not None and row.life == entry.life else position

    monkeypatch.setattr(lineage, "next_commit", at_the_row)
    assert re.search("due is|the progress is at", first_broken())


# Resets that replace rows, and keys


SHORT: Any = {"hours": 0.15, "style": "columns", "hosts": 3, "partitions": 3, "operators": True}


@pytest.mark.long
def test_rows_that_stay_at_a_reset_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkDelivery, "_replaced", lambda *_: None)
    with pytest.raises(InvariantViolation, match="the chain leads to"):
        simulate(
            1, hours=0.15, style="columns", stream="positions", hosts=3, partitions=3, operators=True, sink=REPLACE
        )


@pytest.mark.long
def test_an_older_row_of_a_key_that_wins_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of a key stays."""
    upsert = SimulatedDatabase._upsert

    def first(self: SimulatedDatabase, delivery: Delivery) -> None:
        before = dict(self.held.keyed)
        upsert(self, delivery)
        self.held.keyed.update(before)

    monkeypatch.setattr(SimulatedDatabase, "_upsert", first)
    with pytest.raises(InvariantViolation, match="not that of commit"):
        simulate(2, stream="splits", **SHORT, sink=UPSERT)
