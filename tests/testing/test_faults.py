"""Each fault of FaultyBackend, as the caller and the store see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from actorproc.errors import ConditionFailed, StoreUnavailable
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.faults import LATENCY_ONLY, Faults, FaultyBackend, current_sender
from actorproc.simulation.loop import START, current_loop, run
from actorproc.storage.backend import NotModified
from actorproc.storage.store import Conflict, Store
from actorproc.stores.memory import MemoryStore


def faulty(faults: Faults = LATENCY_ONLY, seed: object = 0) -> FaultyBackend:
    return FaultyBackend(MemoryStore(clock=VirtualClock("store")), faults, seed=seed)


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        run(test())  # type: ignore[arg-type]

    in_virtual_time.__name__ = test.__name__
    return in_virtual_time


async def refused(request: Awaitable[object]) -> float:
    """How long the request took to fail as unavailable."""
    before = current_loop().now
    with pytest.raises(StoreUnavailable):
        await request
    return current_loop().now - before


@simulated
async def test_a_store_without_faults_only_takes_time() -> None:
    store = faulty()
    tag = await store.put_if_absent("a/1", b"one")
    assert 0.005 <= current_loop().now - START <= 0.08
    stored = await store.get("a/1")
    assert stored is not None
    assert (stored.body, stored.tag) == (b"one", tag)
    with pytest.raises(ConditionFailed):
        await store.put_if_absent("a/1", b"two")
    with pytest.raises(NotModified):
        await store.get("a/1", unless=tag)
    with pytest.raises(ConditionFailed):
        await store.put_if_match("a/1", b"two", "no such tag")
    tag = await store.put_if_match("a/1", b"two", tag)
    await store.put("a/2", b"three")
    listing = await store.list("a/", after="a/1")
    assert [entry.key for entry in listing.entries] == ["a/2"]
    await store.delete("a/1")
    assert await store.get("a/1") is None
    assert not +store.injected


@simulated
async def test_the_store_uses_the_worlds_clock() -> None:
    store = faulty()
    host = current_loop().host("fast", rate=1.02, offset=5000)
    await host.start(store.put("a", b""))
    await SYSTEM.sleep(100)
    listing = await store.list("")
    assert listing.now - listing.entries[0].modified == pytest.approx(100, abs=0.2)


@simulated
async def test_a_lost_request_is_never_applied_and_never_answered() -> None:
    store = faulty(replace(LATENCY_ONLY, lost_request=1))
    for number in range(20):
        await refused(store.put(f"{number}", b""))
    await SYSTEM.sleep(1000)
    assert (await store.truth.list("")).entries == []
    assert store.injected["lost_request"] == 20


@simulated
async def test_unanswered_requests_fail_at_once_or_hang() -> None:
    store = faulty(replace(LATENCY_ONLY, lost_request=1))
    waits = [await refused(store.get("a")) for _ in range(50)]
    assert min(waits) < 0.1
    assert max(waits) > 20
    assert not [wait for wait in waits if 0.1 < wait < 20]


@simulated
async def test_a_lost_reply_leaves_the_write_applied() -> None:
    store = faulty(replace(LATENCY_ONLY, lost_reply=1))
    for number in range(20):
        await refused(store.put_if_absent(f"{number:02}", b""))
    await SYSTEM.sleep(1)
    assert len((await store.truth.list("")).entries) == 20


@simulated
async def test_a_late_write_is_applied_long_after_its_caller_gave_up() -> None:
    store = faulty(replace(LATENCY_ONLY, late_write=1))
    sent = current_loop().now
    with anyio.move_on_after(0.001):
        await store.put_if_absent("a", b"late")
    await SYSTEM.sleep(4.9)
    assert await store.truth.get("a") is None
    await SYSTEM.sleep(90)
    (entry,) = (await store.truth.list("")).entries
    landed = entry.modified - VirtualClock("any").wall() + current_loop().now
    assert 5 <= landed - sent <= 90.001


@simulated
async def test_a_late_write_respects_its_condition() -> None:
    store = faulty(replace(LATENCY_ONLY, late_write=1))
    await refused(store.put_if_absent("a", b"late"))
    store.faults = LATENCY_ONLY
    current = await store.get("a")
    if current is None:
        await store.put_if_absent("a", b"first")
    tag = (await store.truth.get("a") or pytest.fail("it is there")).tag
    store.faults = replace(LATENCY_ONLY, late_write=1)
    await refused(store.put_if_match("a", b"late swap", tag))
    await store.truth.put_if_match("a", b"second", tag)
    await SYSTEM.sleep(100)
    stored = await store.truth.get("a")
    assert stored is not None
    assert stored.body == b"second"


@simulated
async def test_a_late_write_survives_the_crash_of_its_sender() -> None:
    store = faulty(replace(LATENCY_ONLY, late_write=1))
    host = current_loop().host("a")
    host.start(store.view("a").put("a", b"from the grave"))
    await SYSTEM.sleep(0.001)
    host.crash()
    await SYSTEM.sleep(100)
    assert await store.truth.get("a") is not None


@simulated
async def test_a_request_in_flight_arrives_while_its_sender_is_paused() -> None:
    store = faulty(replace(LATENCY_ONLY, latency=(1.0, 1.0)))
    host = current_loop().host("a")
    task = host.start(store.put("a", b""))
    await SYSTEM.sleep(0.01)
    host.pause()
    await SYSTEM.sleep(5)
    assert await store.truth.get("a") is not None
    assert not task.done()
    host.resume()
    await task


@simulated
async def test_a_busy_store_refuses_requests_without_applying_them() -> None:
    store = faulty(replace(LATENCY_ONLY, busy=1))
    outcomes = []
    for number in range(50):
        try:
            outcomes.append(bool(await store.put(f"{number}", b"")))
        except StoreUnavailable:
            outcomes.append(False)
    assert len((await store.truth.list("")).entries) == sum(outcomes)
    assert 0 < sum(outcomes) < 25


@simulated
async def test_a_cut_may_affect_some_keys_only() -> None:
    store = faulty()
    store.cut(60, prefix="hosts/")
    await store.put("a", b"")
    await refused(store.put("hosts/a", b""))


@simulated
async def test_the_store_knows_sender_and_time_of_late_writes() -> None:
    seen: list[tuple[str, float]] = []

    class Curious(MemoryStore):
        async def put(self, key: str, body: bytes) -> str:
            sender = current_sender.get()
            assert sender is not None
            seen.append(sender)
            return await super().put(key, body)

    store = FaultyBackend(Curious(clock=VirtualClock("store")), replace(LATENCY_ONLY, late_write=1))
    await refused(store.view("east").put("a", b""))
    await SYSTEM.sleep(100)
    assert seen == [("east", START)]


@simulated
async def test_an_outage_affects_all_views_and_a_cut_one() -> None:
    store = faulty()
    east, west = store.view("east"), store.view("west")
    east.cut(60)
    await refused(east.put("a", b""))
    await west.put("b", b"")
    store.outage(300)
    await refused(east.put("a", b""))
    await refused(west.put("c", b""))
    await SYSTEM.sleep(301)
    await east.put("a", b"")
    await west.put("c", b"")
    assert +store.injected == {"cut": 1, "outage": 1}
    store.outage(300)
    store.heal()
    await west.put("d", b"")


@simulated
async def test_interfere_decides_the_fate_of_a_request() -> None:
    store = faulty()
    fates = {"a": "lost_request", "b": "lost_reply", "c": "late_write"}
    store.interfere = lambda verb, key: fates.get(key) if verb == "put" else None
    for key in fates:
        await refused(store.put(key, b""))
    await store.put("d", b"")
    await SYSTEM.sleep(100)
    assert [entry.key for entry in (await store.list("")).entries] == ["b", "c", "d"]
    assert +store.injected == {"lost_request": 1, "lost_reply": 1, "late_write": 1}


@simulated
async def test_a_crashed_host_sends_nothing() -> None:
    store = faulty()
    host = current_loop().host("a")
    sent = []

    async def program() -> None:
        sent.append("begun")
        await SYSTEM.sleep(1)
        await store.put("a", b"")
        sent.append("put")

    host.start(program())
    await SYSTEM.sleep(0.5)
    host.crash()
    await SYSTEM.sleep(100)
    assert sent == ["begun"]
    assert await store.truth.get("a") is None


HEAVY_FAULTS = Faults(lost_request=0.1, lost_reply=0.1, late_write=0.1, slow=0.1, busy=0.02)


def story(seed: int) -> tuple[list[str], int]:
    """Two hosts create and swap objects over a wild store; the outcome of each, and the loop's fingerprint."""

    async def main() -> tuple[list[str], int]:
        store = faulty(HEAVY_FAULTS, seed)
        outcomes: list[str] = []

        async def work(name: str, rate: float) -> None:
            clock = VirtualClock(f"{seed}/{name}")
            view = Store(store.view(name), clock=clock)
            for number in range(40):
                body = clock.nonce().encode()
                try:
                    created = await view.create(f"{number}", body)
                    await clock.sleep(rate)
                    await view.swap(f"{number}", body + b"!", created)
                    outcomes.append(f"{name} has {number}")
                except Conflict:
                    outcomes.append(f"{name} lost {number}")

        hosts = [current_loop().host(name, rate=rate) for name, rate in (("a", 0.98), ("b", 1.02))]
        tasks = [host.start(work(host.name, host.rate)) for host in hosts]
        for task in tasks:
            await task
        return outcomes, current_loop().fingerprint

    return run(main(), seed=seed)


def test_a_conditional_write_has_one_winner_despite_faults() -> None:
    stories = [story(seed) for seed in range(12)]
    for outcomes, _ in stories:
        winners = [outcome.split()[2] for outcome in outcomes if "has" in outcome]
        assert len(outcomes) == 80
        assert len(winners) == len(set(winners))
    assert sum(len([o for o in outcomes if "has" in o]) for outcomes, _ in stories) > 12 * 30
    assert len({fingerprint for _, fingerprint in stories}) == 12


def test_the_same_seed_injects_the_same_faults() -> None:
    assert [story(seed) for seed in range(3)] == [story(seed) for seed in range(3)]
