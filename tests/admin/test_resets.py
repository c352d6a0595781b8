"""Resets of partitions, while hosts run and while none does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler
from actorproc.admin.audit import read_audit
from actorproc.admin.damage import Verification
from actorproc.admin.resets import PartitionReset, Resets, ResetTarget, parse_reset_target, summary
from actorproc.admin.verify_output import PartitionCheck
from actorproc.errors import CorruptObject, Fenced, UsageError
from actorproc.group.assignment import Member
from actorproc.group.membership import GroupDocument
from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.output.row_reader import all_slices, read_rows
from actorproc.output.schema_document import agree_on_schema
from actorproc.retention.boundary import raise_boundary
from actorproc.rows.output_schema import parse_schema
from actorproc.state.reading import read_state
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.testing import MemorySource
from tests.admin.test_placement import LAYOUT, SETTINGS, fleet
from tests.partition.world import World, _at_least, eventually


class Rows(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


class FirstRows(PartitionHandler):
    """Emits nothing from the tenth number on."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.json() < 10:
                ctx.emit(record, {"n": record.json()})


class Sums(Rows):
    """Adds up the numbers in keyed state."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.state.set("sum", ctx.state.get("sum", 0) + record.json())
        await super().process(batch, ctx)


async def world_of(records: int, handler: type[PartitionHandler] = Rows, **settings: Any) -> World:
    """A partition with these records, all committed in files of three rows."""
    world = World(handler, **{"page": 3, "commit_rows": 3, **settings})
    world.source = MemorySource(1, page=3)
    await agree_on_schema(world.store, world.layout, parse_schema("n long"))
    world.feed(records)
    await world.until_end(1)
    return world


def resets_of(world: World, command: str = "") -> Resets:
    return Resets(world.store, world.layout, world.settings, world.source, "ann", command=command)


async def reset(world: World, goal: ResetTarget, command: str = "") -> PartitionReset:
    resets = resets_of(world, command)
    [done] = await resets.carry_out(await resets.plan(goal), {"to": str(goal)})
    return done


async def undo(world: World) -> PartitionReset:
    resets = resets_of(world)
    [done] = await resets.carry_out(await resets.plan_undo(), {})
    return done


async def rows(store: Store, layout: ProcessorLayout, partition: str = "0") -> Counter[int]:
    """How often each sequence is in the output."""
    found: Counter[int] = Counter()
    async for piece in all_slices(store, layout, [partition]):
        async for batch in read_rows(store, piece):
            found.update(batch["_sequence"].to_pylist())
    return found


async def tip_of(world: World) -> ChainEnd:
    tip = await OutputChain(world.store, world.layout, "0").tip()
    assert tip is not None
    return tip


def times(*counts: tuple[range, int]) -> Counter[int]:
    return Counter({sequence: count for numbers, count in counts for sequence in numbers})


@pytest.mark.parametrize(
    ("goal", "repeats", "skips"),
    [("earliest", 10, 0), ("latest", 0, 5), (4, 6, 0), (12, 0, 2), (-3, 3, 0), (-99, 10, 0), (15, 0, 5)],
)
async def test_a_reset_repeats_and_skips_the_records_of_its_dry_run(
    goal: ResetTarget, repeats: int, skips: int
) -> None:
    world = await world_of(10)
    world.feed(5)
    [planned] = await resets_of(world).plan(goal)
    assert (planned.repeats, planned.skips, planned.refusal) == (repeats, skips, "")
    done = await reset(world, goal)
    assert (done.repeats, done.skips) == (repeats, skips)
    world.feed(3)
    await world.until_end(2)
    begin = 10 - repeats + skips
    expected = times((range(10), 1)) + times((range(begin, 18), 1))
    assert await rows(world.store, world.layout) == expected


async def test_a_dry_run_writes_nothing() -> None:
    world = await world_of(10)
    before = [entry.tag for entry in (await world.store.list("")).entries]
    assert (await resets_of(world).plan("earliest"))[0].repeats == 10
    assert [entry.tag for entry in (await world.store.list("")).entries] == before


async def test_undo_goes_to_where_the_partition_was_and_undo_of_undo_back() -> None:
    world = await world_of(10)
    await reset(world, 2)
    assert (await tip_of(world)).cursor.sequence == 1
    done = await undo(world)
    assert (done.repeats, done.skips) == (0, 8)
    assert (await tip_of(world)).cursor.sequence == 9
    done = await undo(world)
    assert (done.repeats, (await tip_of(world)).cursor.sequence) == (8, 1)
    await world.until_end(2)
    assert await rows(world.store, world.layout) == times((range(2), 1), (range(2, 10), 2))


async def test_a_command_that_is_run_again_resets_once() -> None:
    world = await world_of(10)
    await reset(world, 0, "command")
    await world.until_end(2)
    assert (await tip_of(world)).checkpoint.resets[0].id == "command"  # the checkpoint has passed the reset
    done = await reset(world, 0, "command")
    assert (done.repeats, done.refusal) == (10, "")
    assert (await tip_of(world)).totals.resets == 1
    await world.until_end(3)
    assert await rows(world.store, world.layout) == times((range(10), 2))


async def _cut_short(*_: object) -> None:
    raise ConnectionError


async def test_a_command_cut_short_before_hosts_began_anew_is_carried_on(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a") as place:
        place.source.append("0", [b"1", b"2"])
        with anyio.fail_after(15):
            while await rows(place.store, LAYOUT, "0") != times((range(2), 1)):
                await anyio.sleep(0.05)

        def again() -> Resets:
            return Resets(place.store, LAYOUT, SETTINGS, place.source, "ann", command="c")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Resets, "_restart", _cut_short)
            with pytest.raises(ConnectionError):
                await again().carry_out(await again().plan("earliest", ["0"]), {})
        [planned] = await again().plan("earliest", ["0"])
        assert (planned.repeats, planned.refusal) == (2, "")
        await again().carry_out([planned], {})
        with anyio.fail_after(15):  # the host waits for records, so it notices nothing by itself
            while await rows(place.store, LAYOUT, "0") != times((range(2), 2)):
                await anyio.sleep(0.05)


async def test_an_undo_cut_short_is_carried_on() -> None:
    world = await world_of(4)
    world.source.add_partition("1")
    world.source.append("1", [b"1", b"2"])
    await world.until_end(1, "1")
    first = resets_of(world, "first")
    await first.carry_out(await first.plan("earliest"), {})
    undoing = resets_of(world, "undo")
    planned = await undoing.plan_undo()
    await undoing.carry_out(planned[:1], {})
    again = resets_of(world, "undo")
    found = await again.plan_undo()
    assert [(one.partition, one.done, one.skips) for one in found] == [("0", True, 4), ("1", False, 2)]
    assert [one.refusal for one in await again.carry_out(found, {})] == ["", ""]
    assert [one.done for one in await again.plan_undo()] == [True, True]


async def test_a_reset_is_refused_once_the_chain_has_moved() -> None:
    world = await world_of(10)
    world.feed(10)
    first, second = resets_of(world), resets_of(world)
    back, forward = await first.plan(5), await second.plan(15)
    await world.until_end(2)
    [passed] = await second.carry_out(forward, {})
    assert "has passed" in passed.refusal
    assert (await first.carry_out(back, {}))[0].repeats == 15  # counted at the reset
    third = resets_of(world)
    [another] = await third.carry_out(await third.plan(0), {})
    assert not another.refusal
    [late] = await second.carry_out(back, {})
    assert "another reset" in late.refusal
    assert (await tip_of(world)).totals.resets == 2


async def test_a_partition_that_its_source_forgot_is_refused_and_others_are_reset() -> None:
    world = await world_of(4)
    world.source.add_partition("1")
    world.source.append("1", [b"1", b"2"])
    await world.until_end(1, "1")
    world.source.forget("1")
    for goal in ("earliest", "latest", 1, -1):
        resets = resets_of(world)
        kept, gone = await resets.plan(goal)
        assert (kept.partition, kept.refusal) == ("0", "it is there already" if goal == "latest" else "")
        assert (gone.partition, gone.refusal) == (
            "1", "the source does not have it any more, so none of its records can be read again",
        )  # fmt: skip
    assert [one.partition for one in await resets.carry_out([kept, gone], {})] == ["0"]


async def test_a_reset_fences_the_running_owner() -> None:
    world = await world_of(10, commit_interval=1000, commit_rows=1000)
    with pytest.raises(ExceptionGroup) as refused:
        async with world.running(2) as actor:
            world.feed(5)
            await eventually(lambda: _at_least(actor.statistics.cursor.sequence, 14))
            await reset(world, 8)
            actor.flush()
            await anyio.sleep(30)
    assert refused.group_contains(Fenced)
    await world.until_end(3)
    assert await rows(world.store, world.layout) == times((range(8), 1), (range(8, 10), 2), (range(10, 15), 1))


async def test_a_reset_to_the_first_record_clears_state() -> None:
    world = await world_of(10, Sums)

    async def total() -> Any:
        return (await read_state(world.store, world.layout, "0")).get("", "sum")

    [refused] = await resets_of(world).plan(5)
    assert "keyed state" in refused.refusal
    world.feed(5)
    assert not (await reset(world, 12)).refusal
    await world.until_end(2)
    assert await total() == sum(range(10)) + 12 + 13 + 14
    done = await reset(world, "earliest")
    assert done.clears_state
    assert (await read_state(world.store, world.layout, "0")).names == {}
    await world.until_end(3)
    await world.until_end(4)
    assert await total() == sum(range(15))
    assert "cannot be brought back" in (await resets_of(world).plan_undo())[0].refusal


async def test_a_reset_below_the_boundary_is_void_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of(10)
    resets, create = resets_of(world), OutputChain.create
    asleep = True

    async def slow(chain: OutputChain, number: int, *rest: Any) -> None:
        nonlocal asleep
        if asleep:  # owners commit meanwhile, and a trim deletes the file of this number
            asleep = False
            monkeypatch.setattr(OutputChain, "create", create)
            world.feed(9)
            await world.until_end(2)
            await raise_boundary(world.store, world.layout.boundary("0"), number + 1)
            await world.store.delete(world.layout.output_file("0", number))
        await create(chain, number, *rest)

    planned = await resets.plan(5)
    monkeypatch.setattr(OutputChain, "create", slow)
    [done] = await resets.carry_out(planned, {})
    assert (done.repeats, (await tip_of(world)).cursor.sequence) == (14, 4)


async def test_a_reset_forward_does_not_go_back_over_passed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_of(10, FirstRows)
    world.feed(10)
    planned, create = await resets_of(world).plan(12), OutputChain.create

    async def late(*arguments: Any) -> None:
        monkeypatch.setattr(OutputChain, "create", create)
        await world.until_end(2)  # all twenty, without a file
        await create(*arguments)

    monkeypatch.setattr(OutputChain, "create", late)
    await resets_of(world).carry_out(planned, {})
    tip = await tip_of(world)
    assert (tip.totals.resets, tip.cursor.sequence) == (1, 19)
    world.feed(5)
    await world.until_end(3)
    assert (await tip_of(world)).cursor.sequence == 24


async def test_an_undo_keeps_state_if_nothing_was_committed_since() -> None:
    world = await world_of(10, Sums)
    world.feed(5)
    await reset(world, "latest")
    assert not (await undo(world)).refusal
    await world.until_end(2)
    assert (await read_state(world.store, world.layout, "0")).get("", "sum") == sum(range(15))
    world.feed(5)
    await reset(world, 17)
    await world.until_end(3)
    assert "keyed state" in (await resets_of(world).plan_undo())[0].refusal


async def test_an_undo_that_would_repeat_records_once_more_is_refused() -> None:
    world = await world_of(10)
    world.feed(5)
    await reset(world, 2)
    await world.until_end(2)
    assert "it has processed all that was repeated" in (await resets_of(world).plan_undo())[0].refusal


async def test_a_partition_that_has_taken_state_of_others_is_only_reset_forward() -> None:
    world = await world_of(3, Sums)
    world.source.add_partition("1", ["0"])
    world.source.append("1", [b"3", b"4"])
    await world.until_end(2)
    await world.until_end(1, "1")
    [refused] = await resets_of(world).plan("earliest", ["1"])
    assert "of partitions before it (0)" in refused.refusal
    world.source.append("1", [b"5"])
    assert not (await resets_of(world).plan("latest", ["1"]))[0].refusal


async def test_a_checkpoint_below_the_boundary_is_reported() -> None:
    world = await world_of(10)
    await raise_boundary(world.store, world.layout.boundary("0"), 99)
    with pytest.raises(CorruptObject, match="an older one restored"):
        await resets_of(world).plan("earliest")


async def test_earlier_releases_refuse_a_partition_that_was_reset() -> None:
    world = await world_of(10)
    assert (await world.checkpoint()).format_version == 1
    await reset(world, 2)
    await world.until_end(2)
    assert (await world.checkpoint()).format_version == 4, "they would forget the resets"


async def test_ended_and_new_partitions_and_earlier_releases_are_refused() -> None:
    world = await world_of(3)
    await SharedDocument(world.store, world.layout.group, GroupDocument).swap(
        GroupDocument.of({"old": Member("1-f3-60s")})
    )
    with pytest.raises(UsageError, match="earlier version"):
        await reset(world, "earliest")
    with pytest.raises(UsageError, match="no partition 'x'"):
        await resets_of(world).plan("earliest", ["x"])
    with pytest.raises(UsageError, match="no reset"):
        await resets_of(world).plan_undo()
    assert "the newest record is 2" in (await resets_of(world).plan(9))[0].refusal
    world.source.add_partition("1", ["0"])
    await world.until_end(2)
    assert "has ended" in (await resets_of(world).plan("earliest"))[0].refusal


async def test_a_verification_finds_no_damage_after_a_reset() -> None:
    world = await world_of(10)
    await reset(world, 2)
    await world.until_end(2)
    await reset(world, 5)
    found = Verification()
    await PartitionCheck(world.store, world.layout, "0", found).run()
    assert not found.damages


def test_goals_are_words_times_and_numbers() -> None:
    assert [parse_reset_target(text) for text in ("earliest", "41203", "-20")] == ["earliest", 41203, -20]
    with pytest.raises(UsageError, match=r"to = '1x': 'earliest', 'latest', a sequence, -N, or a time"):
        parse_reset_target("1x")


async def test_running_hosts_begin_at_the_reset_at_once_and_it_is_audited(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as place:
        for partition in "0123":
            place.source.append(partition, [b"1", b"2", b"3"])

        async def until(expected: Counter[int]) -> None:
            with anyio.fail_after(15):
                while any([await rows(place.store, LAYOUT, p) != expected for p in "0123"]):
                    await anyio.sleep(0.05)

        await until(times((range(3), 1)))
        resets = Resets(place.store, LAYOUT, SETTINGS, place.source, "ann@laptop", "a wrong rate", command="c")
        done = await resets.carry_out(await resets.plan(1), {"to": "1"})
        assert summary(done) == "repeats 8 and skips 0 records of 4 partitions"
        await until(times((range(1), 1), (range(1, 3), 2)))
        [act] = await read_audit(place.store, LAYOUT.audit)
        assert (act.what, act.to, act.reason) == ("reset", {"to": "1", "command": "c"}, "a wrong rate")
