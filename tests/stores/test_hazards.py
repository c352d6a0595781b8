"""Faults of networks and services in S3 requests, on real servers behind a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed, SettingsError, StoreRefused, StoreUnavailable, StoreUnsafe
from actorproc.runtime.backoff import Backoff
from actorproc.storage.backend import Stored
from actorproc.storage.probe import ensure_safe, probe
from actorproc.storage.store import Conflict, Store, StoreLimits
from actorproc.stores import open_store
from tests.servers import S3Server
from tests.stores.keep_alive import breaking_after
from tests.stores.proxy import Proxy, Request, proxied, reply

OK = (
    b'HTTP/1.1 200 OK\r\nETag: "x"\r\nDate: Sat, 21 Nov 2026 08:00:00 GMT\r\n'
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


class Through(NamedTuple):
    store: Store
    proxy: Proxy
    direct: Store


@pytest.fixture
async def through(s3_server: S3Server) -> AsyncIterator[Through]:
    """A store seen through the proxy, and the same one seen directly."""
    url = await s3_server.new_url()
    async with proxied(s3_server) as (proxy, front), _opened(url, s3_server) as direct, _opened(url, front) as store:
        proxy.seen.clear()
        yield Through(store, proxy, direct)


@asynccontextmanager
async def _opened(url: str, server: S3Server) -> AsyncIterator[Store]:
    store = open_store(url, Settings.load(**server.settings))
    store.limits = StoreLimits(timeout=10, patience=20, backoff=Backoff(0.001, 0.01))
    async with store:
        yield store


def _writes(proxy: Proxy) -> list[Request]:
    return [request for request in proxy.seen if request.method == "PUT"]


def _first_write(proxy: Proxy) -> bool:
    return len(_writes(proxy)) == 1 and proxy.seen[-1].method == "PUT"


async def test_a_write_whose_connection_breaks_is_sent_once_per_call(through: Through) -> None:
    """aiohttp would send it again, and the caller would get 412 for its own write."""
    store, proxy, _ = through

    async def apply_then_drop(request: Request) -> None:
        await proxy.forward(request)

    proxy.on_request = apply_then_drop
    with pytest.raises(StoreUnavailable):
        await store.backend.put_if_absent("key", b"body")
    assert len(proxy.seen) == 1
    with pytest.raises(StoreUnavailable):
        await store.backend.put("other", b"body")
    with pytest.raises(StoreUnavailable):
        await store.backend.get("other")
    with pytest.raises(StoreUnavailable):
        await store.backend.delete("other")
    assert len(proxy.seen) == 4


async def test_a_write_over_a_reused_connection_that_breaks_is_sent_once(s3_server: S3Server) -> None:
    """The dangerous case: only on a connection that served before does aiohttp repeat by itself."""
    url = await s3_server.new_url()
    async with breaking_after(s3_server, requests=2) as (front, puts), _opened(url, front) as store:
        await store.backend.put("first", b"body")
        with pytest.raises(StoreUnavailable):
            await store.backend.put_if_absent("key", b"body")
        assert puts == ["first", "key"]


async def test_create_whose_reply_is_lost_says_created(through: Through) -> None:
    store, proxy, direct = through

    async def lose_first_reply(request: Request) -> bytes | None:
        answer = await proxy.forward(request)
        return None if _first_write(proxy) else answer

    proxy.on_request = lose_first_reply
    created = await store.create("key", b"mine")
    assert len(_writes(proxy)) == 1
    assert await direct.get("key") == Stored(b"mine", created, 4)


async def test_swap_whose_reply_is_lost_says_created(through: Through) -> None:
    store, proxy, direct = through
    tag = await direct.put("key", b"old")

    async def lose_first_reply(request: Request) -> bytes | None:
        answer = await proxy.forward(request)
        return None if _first_write(proxy) else answer

    proxy.on_request = lose_first_reply
    created = await store.swap("key", b"mine", tag)
    assert len(_writes(proxy)) == 1
    assert await direct.get("key") == Stored(b"mine", created, 4)


async def test_create_whose_request_is_lost_is_sent_again(through: Through) -> None:
    store, proxy, direct = through

    async def lose_first_request(request: Request) -> bytes | None:
        return None if _first_write(proxy) else await proxy.forward(request)

    proxy.on_request = lose_first_request
    created = await store.create("key", b"mine")
    assert len(_writes(proxy)) == 2
    assert await direct.get("key") == Stored(b"mine", created, 4)


async def test_a_create_that_lands_late_is_refused_and_the_winner_kept(through: Through) -> None:
    store, proxy, direct = through
    held: list[Request] = []

    async def hold(request: Request) -> bytes | None:
        if request.conditional_write:
            held.append(request)
            return None
        return await proxy.forward(request)

    proxy.on_request = hold
    with pytest.raises(StoreUnavailable):
        await store.backend.put_if_absent("key", b"zombie")
    winner = await direct.create("key", b"winner")
    assert (await proxy.forward(held[0])).split()[1] == b"412"
    assert await direct.get("key") == Stored(b"winner", winner, 6)


async def test_a_swap_that_lands_late_is_refused_and_the_winner_kept(through: Through) -> None:
    store, proxy, direct = through
    tag = await direct.put("key", b"old")
    held: list[Request] = []

    async def hold(request: Request) -> bytes | None:
        held.append(request)
        return None

    proxy.on_request = hold
    with pytest.raises(StoreUnavailable):
        await store.backend.put_if_match("key", b"zombie", tag)
    winner = await direct.swap("key", b"winner", tag)
    assert (await proxy.forward(held[0])).split()[1] == b"412"
    assert await direct.get("key") == Stored(b"winner", winner, 6)


async def test_create_sent_again_after_its_first_try_landed_late_says_created(through: Through) -> None:
    """The first try lands between reading back and sending again: the second is refused by one's own write."""
    store, proxy, direct = through

    async def late(request: Request) -> bytes | None:
        if not request.conditional_write:
            return await proxy.forward(request)
        if len(_writes(proxy)) == 1:
            return None
        assert (await proxy.forward(_writes(proxy)[0])).split()[1] == b"200"
        return await proxy.forward(request)

    proxy.on_request = late
    created = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", created, 4)


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "ConditionalRequestConflict"), (503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout")],
)
async def test_an_answer_that_says_try_again_is_tried_again(through: Through, status: int, code: str) -> None:
    store, proxy, direct = through

    async def busy_at_first(request: Request) -> bytes | None:
        return reply(status, code) if len(proxy.seen) == 1 else await proxy.forward(request)

    proxy.on_request = busy_at_first
    created = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", created, 4)
    proxy.seen.clear()
    assert (await store.get("key")) == Stored(b"mine", created, 4)
    assert len(proxy.seen) == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (307, "TemporaryRedirect"), (400, "InvalidArgument"), (413, "EntityTooLarge")],
)
async def test_a_write_that_was_applied_and_answered_with_a_refusal_is_found(
    through: Through, status: int, code: str
) -> None:
    store, proxy, direct = through

    async def apply_and_refuse(request: Request) -> bytes | None:
        answer = await proxy.forward(request)
        return reply(status, code) if request.method == "PUT" else answer

    proxy.on_request = apply_and_refuse
    tag = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", tag, 4)
    tag = await store.swap("key", b"later", tag)
    assert await direct.get("key") == Stored(b"later", tag, 5)


async def test_a_write_whose_answer_lacks_the_etag_is_found(through: Through) -> None:
    store, proxy, direct = through

    async def drop_etag(request: Request) -> bytes | None:
        answer = await proxy.forward(request)
        return re.sub(rb"(?i)\r\netag:[^\r]*", b"", answer) if request.method == "PUT" else answer

    proxy.on_request = drop_etag
    tag = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", tag, 4)


async def test_a_write_that_is_refused_and_not_applied_is_refused(through: Through) -> None:
    store, proxy, direct = through

    async def refuse_writes(request: Request) -> bytes | None:
        return reply(403, "AccessDenied") if request.method == "PUT" else await proxy.forward(request)

    proxy.on_request = refuse_writes
    with pytest.raises(StoreRefused, match="AccessDenied"):
        await store.create("key", b"mine")
    assert await direct.get("key") is None


@pytest.mark.parametrize("failure", [b"503", b"hang up"])
async def test_a_store_whose_first_listing_fails_is_opened_all_the_same(s3_server: S3Server, failure: bytes) -> None:
    url = await s3_server.new_url()
    async with proxied(s3_server) as (proxy, front):

        async def fail_first(request: Request) -> bytes | None:
            if len(proxy.seen) == 1:
                return reply(503, "SlowDown") if failure == b"503" else None
            return await proxy.forward(request)

        proxy.on_request = fail_first
        async with _opened(url, front) as store:
            assert await store.get("key") is None


async def test_a_conflict_answered_409_instead_of_412_is_a_conflict(through: Through) -> None:
    """As CoreWeave answers a create that lost."""
    store, proxy, direct = through
    other = await direct.create("key", b"other")

    async def conflict(request: Request) -> bytes | None:
        return reply(409, "Conflict") if request.method == "PUT" else await proxy.forward(request)

    proxy.on_request = conflict
    with pytest.raises(Conflict) as caught:
        await store.create("key", b"mine")
    assert caught.value.stored == Stored(b"other", other, 5)


async def test_equal_bodies_have_equal_tags(through: Through) -> None:
    """Why every body carries a put-id: a stale match succeeds once somebody has put the same bytes back."""
    backend = through.direct.backend
    first = await backend.put("key", b"same")
    await backend.put("key", b"other")
    assert await backend.put("key", b"same") == first
    assert await backend.put_if_match("key", b"stale", first)
    with pytest.raises(ConditionFailed):
        await backend.put_if_match("key", b"staler", first)


async def test_no_write_waits_for_100_continue(through: Through) -> None:
    """The proxy never sends it, so a client that waits for it would hang."""
    store, proxy, _ = through
    await store.put("small", b"x")
    await store.create("large", bytes(3 * 2**20))
    assert [r.headers.get("expect") for r in _writes(proxy)] == [None, None]


async def test_requests_name_their_sender(s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    async with proxied(s3_server) as (proxy, front):
        async with open_store(url, Settings.load(**front.settings, store_user_agent="shop/7 (blue)")) as store:
            await store.put("key", b"body")
        agents = {request.headers["user-agent"] for request in proxy.seen}
    assert len(agents) == 1
    assert re.search(r" actorproc/\d\S* shop/7 \(blue\)$", agents.pop())


@pytest.mark.parametrize("text", ["two\nlines", "ünïcode", "", "x" * 201])
def test_a_sender_that_is_no_header_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="store_user_agent"):
        Settings.load(store_user_agent=text)


async def test_no_checksums_are_sent_that_services_may_not_know(through: Through) -> None:
    await through.store.create("key", b"body")
    (write,) = _writes(through.proxy)
    assert not [name for name in write.headers if "checksum" in name or name == "x-amz-trailer"]
    assert write.body == b"body"


async def test_a_body_cut_short_is_never_returned(through: Through) -> None:
    store, proxy, direct = through
    await direct.put("key", b"0123456789" * 1000)

    async def cut(request: Request) -> bytes:
        return (await proxy.forward(request))[:-1] if len(proxy.seen) == 1 else await proxy.forward(request)

    proxy.on_request = cut
    stored = await store.get("key")
    assert stored is not None
    assert stored.body == b"0123456789" * 1000
    assert len(proxy.seen) == 2


async def test_a_listing_cut_short_or_garbled_is_never_returned(through: Through) -> None:
    store, proxy, direct = through
    await direct.put("key", b"body")

    async def garble(request: Request) -> bytes | None:
        page = await proxy.forward(request)
        head, _, body = page.partition(b"\r\n\r\n")
        if len(proxy.seen) == 1:
            return page[:-5]
        if len(proxy.seen) == 2:
            plain = re.sub(rb"(?i)\r\n(content-length|transfer-encoding):[^\r]*", b"", head)
            return plain + b"\r\n\r\n" + body[: len(body) // 2]
        return page

    proxy.on_request = garble
    assert [e.key for e in (await store.list("")).entries] == ["key"]
    assert len(proxy.seen) == 3


async def test_a_server_that_never_answers_costs_the_deadline_and_no_more(through: Through) -> None:
    store, proxy, _ = through
    asked = asyncio.Event()

    async def silence(request: Request) -> None:
        asked.set()
        await asyncio.Event().wait()

    proxy.on_request = silence
    store.limits = StoreLimits(timeout=0.5, patience=0.01)
    with pytest.raises(StoreUnavailable, match=r"no answer to put within 0\.5 s"):
        await store.put("key", b"body")
    assert asked.is_set()


async def test_a_server_that_ignores_conditions_is_refused_naming_the_property(through: Through) -> None:
    store, proxy, _ = through
    proxy.on_request = proxy.forward_unconditionally
    with pytest.raises(StoreUnsafe, match=r"not safe to use.*'create if absent'.*second create was accepted"):
        await ensure_safe(store, "probe/")
    broken = [p.name for p in await probe(store, "probe/") if not p.held]
    assert broken[:5] == [
        "create if absent",
        "stale match",
        "match on a missing key",
        "race of creates",
        "race of matches",
    ]


async def test_a_server_that_ignores_only_matches_is_refused_naming_the_property(through: Through) -> None:
    store, proxy, _ = through

    async def ignore_matches(request: Request) -> bytes | None:
        ignored = request.method == "PUT" and "if-match" in request.headers
        return await (proxy.forward_unconditionally(request) if ignored else proxy.forward(request))

    proxy.on_request = ignore_matches
    with pytest.raises(StoreUnsafe, match=r"'stale match'.*the stale write was accepted"):
        await ensure_safe(store, "probe/")


async def test_a_server_that_accepts_every_write_is_refused(through: Through) -> None:
    store, proxy, _ = through

    async def fine(request: Request) -> bytes:
        return await proxy.forward(request) if request.method == "GET" else OK

    proxy.on_request = fine
    with pytest.raises(
        StoreUnsafe, match=r"'read your write'.*after the first write, nothing was read instead of 'one'"
    ):
        await ensure_safe(store, "probe/")


async def test_a_server_that_answers_200_to_everything_is_refused_naming_the_property(through: Through) -> None:
    store, proxy, _ = through

    async def fine(request: Request) -> bytes:
        return OK

    proxy.on_request = fine
    store.limits = StoreLimits(timeout=5, patience=0.1, backoff=Backoff(0.001, 0.01))
    with pytest.raises(StoreUnsafe, match="'read your write'"):
        await ensure_safe(store, "probe/")
    with pytest.raises(StoreUnavailable, match="the answer to list is no listing"):
        await store.backend.open()


async def test_a_service_without_etags_is_refused(through: Through) -> None:
    async def no_tag(request: Request) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    through.proxy.on_request = no_tag
    with pytest.raises(StoreRefused, match="without an ETag"):
        await through.store.put("key", b"body")


async def test_the_probe_leaves_nothing_behind_even_where_replies_get_lost(through: Through) -> None:
    store, proxy, direct = through

    async def lose_some_replies(request: Request) -> bytes | None:
        lost = len(proxy.seen) % 13 == 0
        answer = await proxy.forward(request)
        return None if lost else answer

    proxy.on_request = lose_some_replies
    assert all(p.held for p in await probe(store, "probe/"))
    assert (await direct.list("")).entries == []


async def test_settling_needs_one_request_where_nothing_goes_wrong(through: Through) -> None:
    created = await through.store.create("key", b"body")
    assert len(through.proxy.seen) == 1
    assert await through.direct.get("key") == Stored(b"body", created, 4)
