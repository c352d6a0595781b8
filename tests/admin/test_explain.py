"""The paragraph of `actorproc explain`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.explain import explain
from actorproc.admin.fleet import PartitionView
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import read_checkpoint
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


class Doubles(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 2 * int(record.value or b"0")})


def explained(**facts: Any) -> str:
    return explain(PartitionView(partition="3", **facts), [], 1000.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"verdict": "moving", "reason": "b has not reported it yet"},
        {"state": "opening"},
        {"state": "waiting", "verdict": "failing", "reason": "StoreRefused"},
    ],
    ids=["not reported yet", "not opened yet", "never opened"],
)
def test_a_position_that_is_not_known_is_not_called_uncommitted(facts: dict[str, Any]) -> None:
    text = explained(owner="b", epoch=2, **facts)
    assert "Its owner has not reported yet how far it is committed." in text
    assert "Nothing is committed" not in text


@pytest.mark.parametrize("facts", [{"owner": "b", "state": "running"}, {}], ids=["running", "without an owner"])
def test_a_partition_without_a_commit_is_called_uncommitted(facts: dict[str, Any]) -> None:
    assert "Nothing is committed yet" in explained(**facts)


@pytest.mark.parametrize("verdict", ["failing", "retrying", "stuck"])
def test_an_error_of_a_called_service_is_not_blamed_on_the_handler_alone(verdict: str) -> None:
    text = explained(owner="b", state="running", verdict=verdict, reason="ConnectionError", fault="user")
    assert "or a service that it calls" in text
    assert "are at fault." not in text


def test_an_unknown_lag_says_who_knows_it() -> None:
    assert "its owner has not reported its lag yet" in explained(owner="b", state="running", sequence=4)
    assert "`actorproc explain --source` asks the source" in explained(sequence=4)
    assert "`actorproc explain --source` asks the source" in explained(owner="b", sequence=4, verdict="silent")


async def test_the_commits_of_the_partition_in_question_are_read_first() -> None:
    """A look reads the checkpoints of some partitions without an owner. It claims nothing about other partitions."""
    store, source = Store(MemoryStore()), MemorySource(40)
    source.append("39", [b"1"])
    await Processor(Doubles, name="p", source=source, container=store).run(until_end=True)
    layout = ProcessorLayout("p")
    texts = {}
    for name in ("39", "0", None):
        fleet = await FleetWatch(store, layout, 60.0).look(name)
        texts[name] = explain(fleet.partitions[name or "39"], fleet.hosts, fleet.time)
    assert "Everything up to record 0 is committed" in texts["39"]
    assert "Nothing is committed yet" in texts["0"]
    assert "Its commits are not read yet" in texts[None]


async def test_a_handoff_after_the_last_commit_is_not_shown_as_a_commit() -> None:
    """The checkpoint is written at the handoff. `status` and `explain` show the time of the same commit."""
    store, source = Store(MemoryStore()), MemorySource(1)
    source.append("0", [b"1"])
    async with Processor(Doubles, name="p", source=source, container=store, commit_interval=0.05) as processor:
        with anyio.fail_after(20):
            while not processor.statistics().partitions or not processor.statistics().partitions[0].commits:
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)
    layout = ProcessorLayout("p")
    view = (await FleetWatch(store, layout, 60.0).look()).partitions["0"]
    commit = await OutputChain(store, layout, "0").read(0)
    checkpoint = await read_checkpoint(store, layout, "0")
    assert commit is not None
    assert checkpoint is not None
    assert checkpoint.time > commit.time == view.last_commit
    status = await FleetWatch(store, layout, 60.0).read_all()
    assert status.partitions["0"].last_commit == commit.time


def test_the_advice_for_a_silent_source_is_not_that_for_a_handler() -> None:
    stuck = {"owner": "b", "state": "running", "verdict": "stuck", "reason": "it hangs"}
    assert "The handler does not return" in explained(**stuck, fault="user")
    assert "The source does not answer b" in explained(**stuck, fault="infrastructure")
    assert "The handler" not in explained(**stuck, fault="infrastructure").split("at fault")[1]
