"""`Store`: deadlines, bounded concurrency, retries, counts, and settled conditional writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
import structlog

from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.store import SLOWEST, Conflict, Store, StoreLimits
from actorproc.stores.memory import MemoryStore

Call = Callable[[], Awaitable[object]]
LIMITS = StoreLimits(timeout=5, patience=5, backoff=Backoff(0.0001, 0.001))


class Wire(Backend):
    """A real backend at the other end of a wire. `plan`: the outcome of each of the next requests, in order."""

    url = "memory://wire"

    def __init__(self, *plan: Callable[[Call], Awaitable[object]]) -> None:
        self.far = MemoryStore()
        self.plan = list(plan)
        self.sent: list[str] = []

    async def _send(self, verb: str, call: Call) -> object:
        self.sent.append(verb)
        return await (self.plan.pop(0)(call) if self.plan else call())

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._send("get", lambda: self.far.get(key, unless=unless, tail=tail))  # type: ignore[return-value]

    async def put(self, key: str, body: bytes) -> str:
        return str(await self._send("put", lambda: self.far.put(key, body)))

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return str(await self._send("put_if_absent", lambda: self.far.put_if_absent(key, body)))

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return str(await self._send("put_if_match", lambda: self.far.put_if_match(key, body, tag)))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._send("list", lambda: self.far.list(prefix, after, limit))  # type: ignore[return-value]

    async def delete(self, key: str) -> None:
        await self._send("delete", lambda: self.far.delete(key))


async def ok(call: Call) -> object:
    return await call()


async def lost_request(call: Call) -> object:
    raise StoreUnavailable("the request was lost")


async def lost_reply(call: Call) -> object:
    await call()
    raise StoreUnavailable("the reply was lost")


async def refused(call: Call) -> object:
    raise StoreRefused("no such bucket")


async def hangs(call: Call) -> object:
    await anyio.sleep_forever()
    raise AssertionError


async def applied_then_hangs(call: Call) -> object:
    await call()
    return await hangs(call)


async def test_create_after_a_lost_request_sends_the_same_bytes_again() -> None:
    wire = Wire(lost_request)
    created = await Store(wire, limits=LIMITS).create("key", b"mine")
    assert wire.sent == ["put_if_absent", "get", "put_if_absent"]
    assert await wire.far.get("key") == Stored(b"mine", created, 4)


async def test_create_finds_its_own_object_after_a_lost_reply() -> None:
    wire = Wire(lost_reply)
    created = await Store(wire, limits=LIMITS).create("key", b"mine")
    assert wire.sent == ["put_if_absent", "get"]
    assert await wire.far.get("key") == Stored(b"mine", created, 4)


@pytest.mark.parametrize("then", [(refused,), (ok, refused), (lost_request, ok, refused)])
async def test_a_refusal_after_a_lost_request_leaves_the_outcome_unknown(
    then: tuple[Callable[[Call], Awaitable[object]], ...],
) -> None:
    wire = Wire(lost_request, *then)
    with pytest.raises(StoreUnavailable, match="or may be later: no such bucket"):
        await Store(wire, limits=LIMITS).create("key", b"mine")
    wire = Wire(refused)
    with pytest.raises(StoreRefused):
        await Store(wire, limits=LIMITS).create("key", b"mine")


async def test_create_returns_the_object_that_another_writer_has_put() -> None:
    wire = Wire()
    tag = await wire.far.put("key", b"theirs")
    with pytest.raises(Conflict) as caught:
        await Store(wire, limits=LIMITS).create("key", b"mine")
    assert caught.value.stored == Stored(b"theirs", tag, 6)


async def test_create_whose_earlier_try_lands_late_still_says_created() -> None:
    wire = Wire()

    async def landed_meanwhile(call: Call) -> object:
        await wire.far.put("key", b"mine")  # the first try, late
        raise ConditionFailed("exists")

    wire.plan = [lost_request, ok, landed_meanwhile]
    created = await Store(wire, limits=LIMITS).create("key", b"mine")
    assert await wire.far.get("key") == Stored(b"mine", created, 4)


async def test_swap_after_a_lost_request_sends_the_same_bytes_again() -> None:
    wire = Wire(lost_request)
    tag = await wire.far.put("key", b"old")
    created = await Store(wire, limits=LIMITS).swap("key", b"mine", tag)
    assert wire.sent == ["put_if_match", "get", "put_if_match"]
    assert await wire.far.get("key") == Stored(b"mine", created, 4)


async def test_swap_after_a_lost_reply_finds_its_own_version() -> None:
    wire = Wire(lost_reply)
    tag = await wire.far.put("key", b"old")
    created = await Store(wire, limits=LIMITS).swap("key", b"mine", tag)
    assert wire.sent == ["put_if_match", "get"]
    assert created != tag


async def test_swap_of_an_older_version_hands_out_the_newer() -> None:
    wire = Wire()
    stale = await wire.far.put("key", b"old")
    tag = await wire.far.put("key", b"new")
    with pytest.raises(Conflict) as caught:
        await Store(wire, limits=LIMITS).swap("key", b"mine", stale)
    assert caught.value.stored == Stored(b"new", tag, 3)


async def test_swap_of_a_deleted_object_is_a_conflict_with_nothing() -> None:
    wire = Wire()
    with pytest.raises(Conflict) as caught:
        await Store(wire, limits=LIMITS).swap("key", b"mine", "tag")
    assert caught.value.stored is None


async def test_a_swap_that_was_overwritten_before_the_read_back_conflicts() -> None:
    wire = Wire()
    tag = await wire.far.put("key", b"old")

    async def applied_and_overwritten(call: Call) -> object:
        await call()
        await wire.far.put("key", b"theirs")
        raise StoreUnavailable("the reply was lost")

    wire.plan = [applied_and_overwritten]
    with pytest.raises(Conflict):
        await Store(wire, limits=LIMITS).swap("key", b"mine", tag)


@pytest.mark.parametrize("verb", ["create", "swap"])
async def test_a_conditional_write_with_an_unknown_outcome_is_reported(verb: str) -> None:
    wire = Wire(*[lost_request, ok] * 3_000)
    tag = await wire.far.put("old", b"old")
    store = Store(wire, limits=StoreLimits(patience=0.05, backoff=Backoff(0.001, 0.001)))
    with pytest.raises(StoreUnavailable, match="the request was lost"):
        await (store.create("key", b"mine") if verb == "create" else store.swap("old", b"mine", tag))
    assert 2 < len(wire.sent) < 1_000


@pytest.mark.parametrize("verb", ["get", "put", "list", "delete"])
async def test_other_requests_are_tried_again_until_they_are_answered(verb: str) -> None:
    wire = Wire(lost_request, lost_reply, lost_request)
    store = Store(wire, limits=LIMITS)
    calls: dict[str, Call] = {
        "get": lambda: store.get("key"),
        "put": lambda: store.put("key", b"body"),
        "list": lambda: store.list(""),
        "delete": lambda: store.delete("key"),
    }
    await calls[verb]()
    assert wire.sent == [verb] * 4
    assert store.requests == {verb: 4}
    assert store.failures == {"unavailable": 3}


async def test_a_store_that_stays_away_is_given_up_after_the_patience() -> None:
    wire = Wire(*[lost_request] * 3_000)
    with pytest.raises(StoreUnavailable, match="the request was lost"):
        await Store(wire, limits=StoreLimits(patience=0.05, backoff=Backoff(0.001, 0.001))).get("key")
    assert 2 < len(wire.sent) < 1_000


async def test_a_refusal_is_final() -> None:
    for verb, sent in (("get", ["get"]), ("create", ["put_if_absent", "get"])):
        wire = Wire(refused)
        store = Store(wire, limits=LIMITS)
        with pytest.raises(StoreRefused):
            await (store.get("key") if verb == "get" else store.create("key", b"x"))
        assert wire.sent == sent, "a write may have been passed on before it was refused"


async def test_a_refused_write_without_reads_keeps_its_reason() -> None:
    async def forbidden(call: Call) -> object:
        raise StoreRefused("no right to read")

    with pytest.raises(StoreRefused, match="no such bucket"):
        await Store(Wire(refused, forbidden), limits=LIMITS).create("key", b"x")


async def test_a_store_is_opened_again_until_it_answers() -> None:
    class Starting(MemoryStore):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            if self.opened < 4:
                raise StoreUnavailable("503 SlowDown")

    backend = Starting()
    with structlog.testing.capture_logs() as logs:
        async with Store(backend, limits=LIMITS):
            pass
    assert backend.opened == 4
    said = [entry for entry in logs if entry["event"] == "store.unavailable" and entry["log_level"] == "warning"]
    assert [entry["error"] for entry in said] == ["503 SlowDown"], "once"


async def test_a_request_without_answer_ends_at_its_deadline() -> None:
    wire = Wire(applied_then_hangs)
    store = Store(wire, limits=StoreLimits(timeout=0.02, patience=5, backoff=Backoff(0.0001, 0.001)))
    created = await store.create("key", b"mine")
    assert wire.sent == ["put_if_absent", "get"]
    assert await wire.far.get("key") == Stored(b"mine", created, 4)
    wire.plan = [hangs]
    assert await store.get("key") == Stored(b"mine", created, 4)


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    under_way = most = 0

    async def slow(call: Call) -> object:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        under_way -= 1
        return await call()

    wire = Wire(*[slow] * 50)
    store = Store(wire, limits=StoreLimits(concurrency=7))
    async with anyio.create_task_group() as tasks:
        for n in range(50):
            tasks.start_soon(store.put, f"key/{n}", b"x")
    assert most == 7
    assert len((await store.list("key/")).entries) == 50


async def test_a_lane_does_not_wait_behind_the_crowd_and_counts_with_it() -> None:
    wire = Wire(hangs)
    store = Store(wire, limits=StoreLimits(concurrency=1))
    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(store.put, f"key/{n}", b"x")
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):  # less than a request may take
            await store.lane().put("heartbeat", b"alive")
        tasks.cancel_scope.cancel()
    assert store.requests["put"] == 2


async def test_a_cancelled_request_frees_its_place() -> None:
    wire = Wire(hangs)
    store = Store(wire, limits=StoreLimits(concurrency=1))
    with anyio.move_on_after(0.01) as scope:
        await store.get("key")
    assert scope.cancelled_caught
    assert await store.get("key") is None


class Slow(MemoryStore):
    """Each request takes ten seconds, and 0.8 seconds more per MiB."""

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        stored = await super().get(key, unless=unless, tail=tail)
        await anyio.sleep(10 if stored is None else 10 + 0.8 * len(stored.body) / SLOWEST)
        return stored

    async def put(self, key: str, body: bytes) -> str:
        await anyio.sleep(10 + 0.8 * len(body) / SLOWEST)
        return await super().put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        await anyio.sleep(10 + 0.8 * len(body) / SLOWEST)
        return await super().put_if_absent(key, body)


def test_a_large_object_has_time_enough_to_come_and_go() -> None:
    async def main() -> None:
        clock = VirtualClock("host")
        store = Store(Slow(clock=clock), limits=StoreLimits(timeout=15), clock=clock)
        body = bytes(40 * 2**20)
        await store.put("key", body)
        await store.create("other", body)
        stored = await store.get("key", size=len(body))
        assert stored is not None
        assert stored.body == body
        assert store.requests == {"put": 1, "put_if_absent": 1, "get": 1}

    run(main())


@pytest.mark.parametrize("known", [0, 2**20])
def test_a_large_object_of_unknown_size_gets_a_longer_deadline(known: int) -> None:
    async def main() -> None:
        clock = VirtualClock("host")
        store = Store(Slow(clock=clock), limits=StoreLimits(timeout=15), clock=clock)
        body = bytes(200 * 2**20)  # takes longer than the patience, too
        await store.put("key", body)
        stored = await store.get("key", size=known)
        assert stored is not None
        assert stored.body == body
        assert store.requests["get"] == 3

    run(main())


def test_a_store_that_answers_nothing_is_given_up_soon_after_the_patience() -> None:
    async def main() -> None:
        clock = VirtualClock("host")
        store = Store(Wire(*[hangs] * 100), limits=StoreLimits(timeout=15, patience=60), clock=clock)
        began = clock.monotonic()
        with pytest.raises(StoreUnavailable, match="no answer to get within 15 s"):
            await store.get("key")
        assert 60 - 15 <= clock.monotonic() - began <= 60 + 2 * 15

    run(main())


def test_a_large_object_that_breaks_off_late_is_asked_for_again() -> None:
    async def breaks_off(call: Call) -> object:
        await anyio.sleep(100)
        raise StoreUnavailable("the connection broke")

    async def main() -> None:
        store = Store(Wire(breaks_off), limits=StoreLimits(), clock=VirtualClock("host"))
        assert await store.get("key", size=128 * 2**20) is None
        assert store.requests == {"get": 2}

    run(main())


class Pages(MemoryStore):
    """Lists ten keys in a page, which takes ten seconds; request number `lost` gets no answer."""

    def __init__(self, lost: int | None = None) -> None:
        super().__init__(clock=VirtualClock("store"))
        self.asked: list[str | None] = []
        self._lost = lost

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        self.asked.append(page)
        await anyio.sleep(10)
        if len(self.asked) - 1 == self._lost:
            raise StoreUnavailable("the reply was lost")
        listing = await self.list(prefix, page or after, 10 if limit is None else min(10, limit))
        return listing, listing.entries[-1].key if len(listing.entries) == 10 else None


@pytest.mark.parametrize("lost", [None, 3])
def test_each_page_of_a_listing_has_its_deadline_and_retries(lost: int | None) -> None:
    async def listed() -> None:
        backend = Pages(lost)
        keys = [f"k{number:03}" for number in range(95)]
        for key in keys:
            await backend.put(key, b"")
        store = Store(backend, limits=StoreLimits(timeout=15), clock=VirtualClock("host"))
        assert [entry.key for entry in (await store.list("k")).entries] == keys
        assert len(backend.asked) == store.requests["list"] == 10 + (lost is not None)
        assert [entry.key for entry in (await store.list("k", after="k010", limit=25)).entries] == keys[11:36]

    run(listed())
