"""Levelling: any loads end up even, in few steps and in little time, whatever the weights."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random
from time import perf_counter

from hypothesis import given
from hypothesis import strategies as st

from actorproc.group.assignment import Lease, Member, plan
from actorproc.group.levelling import Load, steps
from actorproc.group.wishes import HEAVIEST, Wishes
from tests.group.test_assignment import handed_over

Carried = dict[str, list[Load]]


def carried(weights: list[tuple[str, int]]) -> Carried:
    """The leases of each host, of these hosts and weights."""
    found: Carried = {host: [] for host in "abcd"}
    for number, (host, weight) in enumerate(weights):
        found[host].append(Load(weight, str(number), host))
    return found


loads = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([1, 2, 3, 50, 999, HEAVIEST])), max_size=60)


@given(weights=loads, fixed=st.tuples(*[st.integers(0, 2_000)] * 4))
def test_each_step_evens_two_hosts_until_none_helps(weights: list[tuple[str, int]], fixed: tuple[int, ...]) -> None:
    movable = carried(weights)
    totals = Counter({host: fixed["abcd".index(host)] + sum(x.weight for x in movable[host]) for host in movable})
    for step in steps(dict(totals), carried(weights)):
        assert totals[step.source] - totals[step.target] > step.load.weight
        assert totals[step.target] == min(totals.values())
        movable[step.source].remove(step.load)
        movable[step.target].append(step.load)
        totals[step.source] -= step.load.weight
        totals[step.target] += step.load.weight
    for heavy, light in permutations(movable, 2):
        assert all(load.weight + totals[light] >= totals[heavy] for load in movable[heavy])


@given(weights=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-9, 9)), min_size=1, max_size=20))
def test_levelling_ends_also_with_weights_that_cannot_be(weights: list[tuple[str, int]]) -> None:
    movable = carried(weights)
    totals = {host: sum(load.weight for load in movable[host]) for host in movable}
    assert len(list(steps(totals, movable))) <= 8 * len(weights)


def test_ten_thousand_partitions_are_planned_by_weights_at_once() -> None:
    """It takes a fifth of a second. The event loop waits for it, and so does the renewal of leases."""
    random = Random(1)
    hosts = [f"h{number}" for number in range(50)]
    leases = {f"p{number}": Lease("h0", 1) for number in range(10_000)}
    wishes = Wishes(weights={name: min(HEAVIEST, round(8 * random.expovariate(1))) for name in leases})
    members = {host: Member("1") for host in hosts}
    start = perf_counter()
    planned = plan(members, leases, wishes)
    assert perf_counter() - start < 5
    totals: Counter[str] = Counter()
    for name, lease in planned.leases.items():
        totals[lease.next or lease.owner or ""] += wishes.weights[name]
    assert max(totals.values()) - min(totals[host] for host in hosts) <= 8
    assert not plan(members, handed_over(planned.leases), wishes).changed
