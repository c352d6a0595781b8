"""The group document: its members, its size, and a document that is deleted or foreign."""

from __future__ import annotations

import anyio
import pytest

from actorproc.errors import CorruptObject
from actorproc.group.assignment import Lease, Member
from actorproc.group.membership import GroupDocument
from actorproc.group.wishes import Wishes
from actorproc.simulation.loop import run
from tests.group.simulated_group import SimulatedGroup

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


def test_incarnations_that_are_out_are_remembered_while_their_heartbeat_exists() -> None:
    document = GroupDocument.of()
    for number in range(200):
        document = document.followed_by({"a": Member(str(number))}, {}, Wishes(), listed={("a", "7"), ("a", "9")})
    assert document.out == (("a", "7"), ("a", "9"), *(("a", str(number)) for number in range(199 - 64, 199)))
    later = document.followed_by(document.members, {}, Wishes(), listed=())
    assert later.out == document.out[2:], "and forgets them with the next write"


def test_a_document_without_a_list_of_fenced_hosts_is_read() -> None:
    body = b'{"version":1,"put_id":"p","members":{},"leases":{},"unowned":{"0":3},"next":{}}'
    assert GroupDocument.from_json("group.json", body) == GroupDocument.of({}, {"0": Lease(None, 3)}, put_id="p")


def test_weights_of_a_document_are_bounded() -> None:
    body = b'{"version":3,"put_id":"p","members":{},"leases":{},"unowned":{},"next":{},"wishes":{"weights":%s}}'
    document = GroupDocument.from_json("group.json", body % b'{"0":-5,"1":0,"2":7,"3":99999999999999999999999}')
    assert document.wishes.weights == {"0": 1, "1": 1, "2": 7, "3": 1_000}
    for weight in (b'"7"', b"7.5", b"null", b"true"):
        with pytest.raises(CorruptObject, match="weights"):
            GroupDocument.from_json("group.json", body % b'{"0":%s}' % weight)


def test_a_deleted_group_document_is_made_anew_and_epochs_go_on() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(6)
        nodes = [fleet.start(name) for name in "ab"]
        await fleet.until_even("a", "b", within=60)
        await anyio.sleep(20)
        before = {p: lease.epoch for p, lease in fleet.leases.items()}
        await fleet.truth.delete(fleet.layout.group)
        await anyio.sleep(20)
        await fleet.until_even("a", "b", within=30)
        assert [p for p, lease in fleet.leases.items() if lease.epoch <= before[p]] == []
        await fleet.until(lambda: all(set(node.holds()) == fleet.of(node.label) for node in nodes), 1, "known to all")

    run(main())


def test_a_document_that_is_not_ours_is_refused_with_its_name() -> None:
    async def main() -> None:
        fleet = SimulatedGroup(1)
        for body, said in ((b"[1]", "is not a valid GroupDocument"), (b'{"version": 9}', "has format version 9")):
            await fleet.truth.put(fleet.layout.group, body)
            with pytest.raises(CorruptObject, match=f"p/group.json: .*{said}"):
                await fleet.document()

    run(main())


def test_a_document_of_ten_thousand_partitions_is_small() -> None:
    members = {f"host-{i}.some.where.internal": Member(f"{i:016x}", i == 3) for i in range(50)}
    leases = {
        f"orders-{p:05}": Lease(f"host-{p % 50}.some.where.internal", p, None if p % 7 else "host-1")
        for p in range(10_000)
    }
    leases["free"] = Lease(None, 4)
    out = tuple((f"host-{i}.some.where.internal", f"{i:016x}-60s") for i in range(64))
    document = GroupDocument.of(members, leases, put_id="host-1/x/y", out=out)
    body = document.to_json()
    assert len(body) < 400_000
    assert GroupDocument.from_json("group.json", body) == document
