"""Wishes of operators in the plan: pauses, drained hosts, placed partitions."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from actorproc.group.assignment import NOBODY, Lease, abandon, plan
from actorproc.group.wishes import Wishes
from tests.group.test_assignment import Leases, group, handed_over, owned


def handed_over_all(leases: Leases) -> Leases:
    """The leases after every owner has handed its marked leases over; those marked for nobody become free."""
    return handed_over({p: Lease(None, x.epoch) if x.next == NOBODY else x for p, x in leases.items()})


def test_a_paused_partition_is_drained_and_gets_no_owner() -> None:
    wishes = Wishes(paused_partitions=("2",))
    draining = plan(group("a", "b"), owned(a="12", b="34"), wishes)
    assert draining.leases == {**owned(a="12", b="34"), "2": Lease("a", 1, NOBODY)}
    assert [move.reason for move in draining.moves] == ["it is paused"]
    drained = plan(group("a", "b"), draining.leases, wishes, ready={"2": "a handed it over"})
    assert drained.leases["2"] == Lease(None, 1)
    assert not plan(group("a", "b"), drained.leases, wishes).changed
    resumed = plan(group("a", "b"), drained.leases)
    assert resumed.leases["2"] == Lease("a", 2)


def test_a_paused_processor_keeps_no_lease_also_of_new_hosts() -> None:
    wishes = Wishes(paused=True)
    result = plan({}, {}, wishes, partitions={"1": (), "2": (), "3": ()}, joining={"a": "1"})
    assert not any(lease.owner for lease in result.leases.values())
    assert not plan(result.members, result.leases, wishes, partitions={"1": (), "2": (), "3": ()}).changed


def test_a_resumed_partition_that_still_drains_stays_with_its_owner() -> None:
    draining = plan(group("a", "b"), owned(a="1", b="2"), Wishes(paused=True)).leases
    assert plan(group("a", "b"), draining).leases == owned(a="1", b="2")


def test_a_drained_host_hands_its_leases_over_and_gets_none() -> None:
    wishes = Wishes(drained=("a",))
    moving = plan(group("a", "b", "c"), owned(a="12", b="3", c="4"), wishes, may_move=False)
    assert {lease.next for p, lease in moving.leases.items() if p in "12"} == {"b", "c"}
    assert {move.reason for move in moving.moves} == {"a is drained"}
    assert not plan(group("a", "b", "c"), handed_over_all(moving.leases), wishes).changed


def test_the_last_host_that_is_drained_gives_its_leases_to_nobody() -> None:
    wishes = Wishes(drained=("a",))
    alone = plan(group("a"), owned(a="12"), wishes)
    assert handed_over_all(alone.leases) == {"1": Lease(None, 1), "2": Lease(None, 1)}
    assert plan(group("a"), handed_over_all(alone.leases), wishes, joining={"b": "1"}).leases["1"] == Lease("b", 2)


def test_a_placed_partition_moves_and_the_balance_leaves_it_there() -> None:
    wishes = Wishes(placed={"1": "b"})
    moving = plan(group("a", "b"), owned(a="12", b="34"), wishes)
    assert moving.leases["1"] == Lease("a", 1, "b")
    assert "it is placed on b" in [move.reason for move in moving.moves]
    assert sum(lease.next is not None for lease in moving.leases.values()) == 2, "another one comes back for it"
    after = handed_over_all(moving.leases)
    assert after["1"].owner == "b"
    assert not plan(group("a", "b"), after, wishes).changed


def test_a_partition_whose_place_is_not_there_runs_elsewhere() -> None:
    wishes = Wishes(placed={"1": "b"})
    assert not plan(group("a"), owned(a="12"), wishes).changed
    assert plan(group("a"), owned(a="12"), wishes, joining={"b": "1"}, may_move=False).leases == owned(a="12")
    assert plan(group("a", "b"), owned(a="12"), wishes).leases["1"].next == "b"


def test_a_hanging_placed_partition_does_not_come_back() -> None:
    wishes = Wishes(placed={"1": "a"})
    after = abandon(group("a", "b"), owned(a="1", b="2"), wishes, "1", "it hangs")
    assert after is not None
    assert after.leases["1"] == Lease("b", 2)
    assert after.wishes == Wishes()


def test_a_paused_partition_that_hangs_goes_to_nobody() -> None:
    after = abandon(group("a", "b"), owned(a="1"), Wishes(paused=True), "1", "it hangs")
    assert after is not None
    assert after.leases["1"] == Lease(None, 1)


@given(
    hosts=st.sets(st.sampled_from("abcd"), min_size=1),
    owners=st.lists(st.sampled_from([*"abcd", None]), max_size=20),
    drained=st.sets(st.sampled_from("abcd")),
    placed=st.dictionaries(st.integers(0, 19).map(str), st.sampled_from("abcd")),
    paused=st.sets(st.integers(0, 19).map(str)),
)
@settings(max_examples=200, deadline=None)
def test_wishes_are_kept_and_the_rest_is_as_even_as_they_allow(
    hosts: set[str], owners: list[str | None], drained: set[str], placed: dict[str, str], paused: set[str]
) -> None:
    wishes = Wishes(paused_partitions=tuple(sorted(paused)), drained=tuple(sorted(drained)), placed=placed)
    leases = {str(p): Lease(owner if owner in hosts else None, 1) for p, owner in enumerate(owners)}
    first = plan(group(*hosts), leases, wishes)
    assert not plan(group(*hosts), first.leases, wishes).changed
    after = handed_over_all(first.leases)
    assert not plan(group(*hosts), after, wishes).changed
    active = hosts - drained
    for p, lease in after.items():
        assert (lease.owner is None) == (p in paused or not active)
        if lease.owner:
            assert lease.owner in active
            assert lease.owner == placed.get(p) or placed.get(p) not in active
    counts = Counter(dict.fromkeys(active, 0))
    counts.update(lease.owner for lease in after.values() if lease.owner)
    pinned = Counter(placed[p] for p, lease in after.items() if lease.owner and placed.get(p) == lease.owner)
    free = [count for host, count in counts.items() if count > pinned[host] or not pinned[host]]
    assert max(free, default=0) - min(counts.values(), default=0) <= 1
