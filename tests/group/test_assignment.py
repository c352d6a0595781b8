"""Who runs which partition: even, sticky, minimal, and explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorproc.group.assignment import Lease, Member, Move, Plan, abandon, plan
from actorproc.group.wishes import Wishes

Members = dict[str, Member]
Leases = dict[str, Lease]


def group(*hosts: str) -> Members:
    return {host: Member("1") for host in hosts}


def owned(**partitions_of: str) -> Leases:
    """owned(a="12", b="3"): host a owns partitions 1 and 2, host b owns 3; all in epoch 1."""
    return {p: Lease(host, 1) for host, partitions in partitions_of.items() for p in partitions}


def targets(leases: Mapping[str, Lease]) -> Counter[str]:
    """The number of leases that each host has once the plan is carried out."""
    return Counter(lease.next or lease.owner or "nobody" for lease in leases.values())


def is_even(leases: Mapping[str, Lease], hosts: Iterable[str]) -> bool:
    counts = targets(leases)
    each = [counts[host] for host in hosts]
    return sum(each) == len(leases) and max(each) - min(each) <= 1


def no_move_helps(leases: Mapping[str, Lease], hosts: Iterable[str], weights: Mapping[str, int]) -> bool:
    """Whether no lease could move and leave its old host heavier than its new one."""
    carried = {host: [weights.get(p, 1) for p, x in leases.items() if (x.next or x.owner) == host] for host in hosts}
    return all(
        weight + sum(carried[light]) >= sum(carried[heavy])
        for heavy, light in permutations(carried, 2)
        for weight in carried[heavy]
    )


def handed_over(leases: Mapping[str, Lease]) -> Leases:
    """The leases after every owner has handed its marked leases over."""
    return {p: Lease(x.next, x.epoch + 1) if x.next else x for p, x in leases.items()}


def live_moves(result: Plan, before: Mapping[str, Lease]) -> int:
    """Leases that live owners have to give up."""
    return sum(1 for p, lease in result.leases.items() if lease.next or (before[p].owner or lease.owner) != lease.owner)


def fewest_moves(counts: Iterable[int], partitions: int) -> int:
    """Leases that hosts with these counts must give up until all have an even share."""
    ordered = sorted(counts, reverse=True)
    least, larger = divmod(partitions, len(ordered))
    return sum(max(0, count - least - (rank < larger)) for rank, count in enumerate(ordered))


def check_reasons(result: Plan, before: Mapping[str, Lease]) -> None:
    """Each change is in the moves once, with a reason. The moves contain nothing else."""
    changed = {p for p, lease in result.leases.items() if lease != before.get(p)}
    assert {move.partition for move in result.moves} == changed
    assert len(result.moves) == len(changed)
    assert all(move.reason for move in result.moves)


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("partitions", range(6))
def test_any_ownership_becomes_even_with_the_fewest_moves(hosts: int, partitions: int) -> None:
    names = [f"h{i}" for i in range(hosts)]
    for owners in product([None, *names], repeat=partitions):
        leases = {str(p): Lease(owner, 3) for p, owner in enumerate(owners)}
        result = plan(group(*names), leases)
        assert is_even(result.leases, names)
        counts = Counter(owner for owner in owners if owner)
        assert live_moves(result, leases) == fewest_moves([counts[h] for h in names], partitions)
        check_reasons(result, leases)
        again = plan(result.members, result.leases)
        assert not again.changed
        assert not again.moves
        assert not plan(result.members, handed_over(result.leases)).changed


@pytest.mark.parametrize("partitions", range(4))
def test_every_way_to_be_halfway_through_moves_becomes_even(partitions: int) -> None:
    names = ["a", "b", "c"]
    states = [Lease(owner, 1, following) for owner in (*names, "dead") for following in (None, *names, "dead")]
    for chosen in product(states, repeat=partitions):
        leases = {str(p): lease for p, lease in enumerate(chosen)}
        result = plan({**group(*names), "dead": Member("1")}, leases, gone={"dead": "dead is dead"})
        assert is_even(result.leases, names)
        assert all(lease.next != lease.owner and lease.next != "dead" for lease in result.leases.values())
        assert not plan(result.members, result.leases).changed
        check_reasons(result, leases)


def test_one_call_gives_even_counts() -> None:
    random = Random(7)
    for _ in range(150):
        names = [f"h{i}" for i in range(random.randint(1, 200))]
        total = random.randint(0, 200)
        favourites = random.sample(names, random.randint(1, len(names)))
        owners = [random.choice([None, *favourites]) for _ in range(total)]
        leases = {str(p): Lease(owner, 1) for p, owner in enumerate(owners)}
        result = plan(group(*names), leases)
        assert is_even(result.leases, names)
        counts = Counter(owner for owner in owners if owner)
        assert live_moves(result, leases) == fewest_moves([counts[h] for h in names], total)
        assert not plan(result.members, result.leases).changed


@given(
    hosts=st.sets(st.sampled_from("abcdefgh"), min_size=1),
    owners=st.lists(st.tuples(st.sampled_from([*"abcdefgh", None]), st.sampled_from([*"abcdefgh", None])), max_size=40),
    away=st.sets(st.sampled_from("abcdefgh")),
    leaving=st.sets(st.sampled_from("abcdefgh")),
    ready=st.sets(st.integers(0, 39)),
    may_move=st.booleans(),
    order=st.randoms(use_true_random=False),
    weights=st.dictionaries(st.integers(0, 39).map(str), st.integers(1, 20)),
)
@settings(max_examples=400, deadline=None)
def test_a_plan_is_sound_for_any_combination_of_events(
    hosts: set[str],
    owners: list[tuple[str | None, str | None]],
    away: set[str],
    leaving: set[str],
    ready: set[int],
    may_move: bool,
    order: Random,
    weights: dict[str, int],
) -> None:
    wishes = Wishes(weights=weights)
    members = group(*sorted(hosts))
    leases = {str(p): Lease(owner, 5, following) for p, (owner, following) in enumerate(owners)}
    gone = {host: f"{host} is dead" for host in away}
    now = {str(p): "handed over" for p in ready}
    result = plan(members, leases, wishes, gone=gone, leaving=leaving, ready=now, may_move=may_move)
    active = hosts - away - leaving
    assert set(result.members) == hosts - away
    check_reasons(result, leases)
    for p, lease in result.leases.items():
        before = leases[p]
        assert lease.owner is None or lease.owner in result.members
        assert lease.next is None or (lease.next in active and lease.next != lease.owner)
        if lease.owner != before.owner:
            assert lease.epoch == before.epoch + (lease.owner is not None)
            alive = before.owner in result.members
            assert not alive or p in now, "a live owner keeps its lease until it is ready"
        else:
            assert lease.epoch == before.epoch
        if active:
            assert lease.owner is not None
            assert lease.owner in active or lease.next
    if may_move and active:
        assert is_even(result.leases, active) or (weights and no_move_helps(result.leases, active, weights))
    same = plan(result.members, result.leases, wishes, leaving=leaving, may_move=may_move)
    assert not same.changed
    # Dictionaries in any order, the same plan.
    shuffled = list(leases.items())
    order.shuffle(shuffled)
    assert plan(
        dict(reversed(members.items())), dict(shuffled), wishes, gone=gone, leaving=leaving, ready=now,
        may_move=may_move,
    ) == result  # fmt: skip


def test_a_host_that_joins_takes_its_share_and_nothing_else_moves() -> None:
    before = plan({}, {}, partitions={str(p): () for p in range(100)}, joining={"a": "1", "b": "1", "c": "1"})
    after = plan(before.members, before.leases, joining={"d": "1"})
    assert {move.target for move in after.moves} == {"d"}
    assert len(after.moves) == 25
    assert all(after.leases[p].owner == before.leases[p].owner for p in after.leases)


def test_only_the_leases_of_a_dead_host_move() -> None:
    before = plan({}, {}, partitions={str(p): () for p in range(99)}, joining={"a": "1", "b": "1", "c": "1"})
    after = plan(before.members, before.leases, gone={"b": "b has not renewed for 61 s"}, may_move=False)
    assert {(move.source, move.reason) for move in after.moves} == {("b", "b has not renewed for 61 s")}
    assert len(after.moves) == 33
    assert all(after.leases[move.partition] == Lease(move.target, 2) for move in after.moves)
    assert is_even(after.leases, ["a", "c"])


def test_live_leases_stay_while_the_membership_is_not_quiet() -> None:
    leases = owned(a="1234")
    assert plan(group("a"), leases, joining={"b": "1"}, may_move=False).leases == leases


def test_a_marked_lease_keeps_owner_and_epoch_until_ready() -> None:
    marked = plan(group("a", "b"), owned(a="1234"))
    assert marked.leases["4"] == Lease("a", 1, "b")
    assert Move("4", "a", "b", "a holds 4, b holds 0") in marked.moves
    over = plan(marked.members, marked.leases, ready={"4": "a handed it over"}, may_move=False)
    assert over.leases["4"] == Lease("b", 2)
    assert over.moves == [Move("4", "a", "b", "a handed it over")]


def test_ready_does_not_move_a_lease_that_is_to_stay() -> None:
    leases = owned(a="12", b="34")
    assert not plan(group("a", "b"), leases, ready={"1": "a handed it over"}).changed


def test_a_new_incarnation_does_not_inherit_the_leases_of_the_old_one() -> None:
    result = plan(group("a", "b"), owned(a="12", b="34"), joining={"a": "2"})
    assert result.members["a"] == Member("2")
    assert result.leases["1"] == Lease("a", 2)
    assert result.leases["3"] == Lease("b", 1)
    assert {move.reason for move in result.moves} == {"a started anew"}


def test_a_leaving_host_has_all_its_leases_marked_for_others_at_once() -> None:
    result = plan(group("a", "b", "c"), owned(a="12", b="34", c="56"), leaving=["a"], may_move=False)
    assert result.members["a"].leaving
    assert {result.leases[p].next for p in "12"} == {"b", "c"}
    assert all(result.leases[p].owner == "a" for p in "12")
    assert {move.reason for move in result.moves} == {"a is leaving"}


def test_the_last_host_to_leave_keeps_its_leases_until_they_are_drained() -> None:
    leaving = plan(group("a"), owned(a="12"), leaving=["a"])
    assert leaving.leases == owned(a="12")
    drained = plan(leaving.members, leaving.leases, ready={"1": "a handed it over"})
    assert drained.leases == {"1": Lease(None, 1), "2": Lease("a", 1)}
    back = plan({}, drained.leases, joining={"b": "1"})
    assert back.leases["1"] == Lease("b", 2), "the epoch goes on"


def test_a_mark_for_a_dead_host_is_called_off() -> None:
    marked = plan(group("a", "b"), owned(a="1234")).leases
    result = plan(group("a", "b"), marked, gone={"b": "b is dead"})
    assert result.leases == owned(a="1234")
    assert {move.reason for move in result.moves} == {"b cannot take it"}
    assert {(move.source, move.target) for move in result.moves} == {("a", "a")}


def test_a_moving_lease_is_redirected_before_a_settled_one_moves() -> None:
    on_the_way = plan(group("a", "b"), owned(a="1234")).leases
    assert targets(on_the_way) == {"a": 2, "b": 2}
    result = plan(group("a", "b"), on_the_way, joining={"c": "1"})
    assert Counter((lease.owner, lease.next) for lease in result.leases.values()) == {
        ("a", None): 2,
        ("a", "b"): 1,
        ("a", "c"): 1,
    }


def test_leases_that_have_not_arrived_yet_are_moved_first() -> None:
    leases = {**owned(a="12", b="34"), "5": Lease("a", 1, "b"), "6": Lease("a", 1, "b")}
    result = plan(group("a", "b"), leases, joining={"c": "1"})
    assert result.leases == {**owned(a="12", b="34"), "5": Lease("a", 1, "c"), "6": Lease("a", 1, "c")}


def test_a_move_is_called_off_before_its_owner_gets_another_lease() -> None:
    leases = {**owned(z="01", b="4567", c="8"), "2": Lease("z", 1, "b"), "3": Lease("z", 1, "b")}
    result = plan(group("z", "b", "c"), leases)
    assert is_even(result.leases, "zbc")
    assert {p: lease.next for p, lease in result.leases.items() if lease.next} == {"3": "c", "7": "c"}
    assert Move("2", "z", "z", "the counts are even without it") in result.moves


def test_a_moving_lease_of_a_dead_host_reaches_its_target() -> None:
    leases = {**owned(a="12", b="3"), "4": Lease("b", 1, "c")}
    result = plan(group("a", "b", "c"), leases, gone={"b": "b is dead"}, may_move=False)
    assert result.leases["4"] == Lease("c", 2)


def test_partitions_that_this_host_does_not_know_are_kept() -> None:
    result = plan(group("a"), owned(a="12"), partitions={"2": (), "3": ()})
    assert result.leases == {**owned(a="12"), "3": Lease("a", 1)}
    assert result.moves == [Move("3", None, "a", "it has no owner")]


def test_without_members_leases_have_no_owner_and_keep_their_epoch() -> None:
    result = plan(group("a"), owned(a="1"), partitions={"2": ()}, gone={"a": "a left"})
    assert result.leases == {"1": Lease(None, 1)}
    assert result.moves == [Move("1", "a", None, "a left")]


def test_neighbouring_partitions_are_spread_over_the_hosts() -> None:
    result = plan({}, {}, partitions=dict.fromkeys("abcdef", ()), joining={"x": "1", "y": "1", "z": "1"})
    assert [result.leases[p].owner for p in "abcdef"] == ["x", "y", "z", "x", "y", "z"]


def test_a_lease_given_up_is_swapped_for_another() -> None:
    members = {host: Member(host) for host in "abc"}
    leases = {name: Lease(owner, 1) for name, owner in zip("012345", "aabbcc", strict=True)}
    after = abandon(members, leases, Wishes(), "0", "it hangs")
    assert after is not None
    assert after.leases["0"] == Lease("b", 2)
    assert [(move.partition, move.target) for move in after.moves] == [("0", "b"), ("2", "a")]
    settled = {**after.leases, "2": Lease("a", 2)}
    assert not plan(after.members, settled).changed, "or the next balance could bring it back"
    fewer = abandon(members, {name: leases[name] for name in "0123"}, Wishes(), "0", "it hangs")
    assert fewer is not None
    assert fewer.leases["0"] == Lease("c", 2)
    assert len(fewer.moves) == 1
    assert abandon({"a": Member("a"), "b": Member("b", leaving=True)}, leases, Wishes(), "0", "it hangs") is None
