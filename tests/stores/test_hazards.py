"""Faults of networks and services in requests to each cloud's store, behind a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable
from actorproc.storage.backend import NotModified, Stored
from actorproc.storage.probe import probe
from actorproc.storage.store import Conflict, StoreLimits
from actorproc.stores import open_store
from tests import servers
from tests.connectors.shared.azure_storage import BlobServer
from tests.servers import clouds
from tests.stores.keep_alive import breaking_after
from tests.stores.proxy import Request, proxied, reply
from tests.stores.through import Server, Through, opened, through_proxy


@pytest.fixture(params=[*clouds()[:2], *servers.params(minio=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def through(server: Server) -> AsyncIterator[Through]:
    async with through_proxy(server) as found:
        yield found


async def test_a_request_whose_connection_breaks_is_sent_once_per_call(through: Through) -> None:
    backend, proxy = through.store.backend, through.proxy

    async def apply_then_drop(request: Request) -> None:
        await proxy.forward(request)

    proxy.on_request = apply_then_drop
    for call in (
        lambda: backend.put_if_absent("key", b"body"),
        lambda: backend.put_if_match("key", b"body", "1"),
        lambda: backend.put("other", b"body"),
        lambda: backend.get("other"),
        lambda: backend.list(""),
        lambda: backend.delete("other"),
    ):
        proxy.seen.clear()
        with pytest.raises(StoreUnavailable, match="no whole answer from http://127"):
            await call()
        assert len(proxy.seen) == 1


async def test_a_write_over_a_reused_connection_that_breaks_is_sent_once(server: Server) -> None:
    """Only on a connection that served before does aiohttp repeat by itself: a PUT, as Azure's writes are."""
    url = await server.new_url()
    async with breaking_after(server, requests=2) as (front, writes), opened(url, front) as store:
        await store.backend.put("first", b"body")
        with pytest.raises(StoreUnavailable):
            await store.backend.put_if_absent("key", b"body")
        assert len(writes) == 2


@pytest.mark.parametrize("verb", ["create", "swap"])
async def test_a_write_whose_answer_is_lost_says_written(through: Through, verb: str) -> None:
    _, store, proxy, direct = through
    tag = await direct.put("key", b"old") if verb == "swap" else None

    async def lose_first_reply(request: Request) -> bytes | None:
        given = await proxy.forward(request)
        return None if request.write and len(through.writes) == 1 else given

    proxy.on_request = lose_first_reply
    written = await store.write("key", b"mine", tag)
    assert len(through.writes) == 1
    assert await direct.get("key") == Stored(b"mine", written, 4)


async def test_a_create_whose_request_is_lost_is_sent_again(through: Through) -> None:
    _, store, proxy, direct = through

    async def lose_first_request(request: Request) -> bytes | None:
        is_first = request.write and len(through.writes) == 1
        return None if is_first else await proxy.forward(request)

    proxy.on_request = lose_first_request
    created = await store.create("key", b"mine")
    assert len(through.writes) == 2
    assert await direct.get("key") == Stored(b"mine", created, 4)


@pytest.mark.parametrize("verb", ["create", "swap"])
async def test_a_write_that_lands_late_is_refused_and_the_winner_kept(through: Through, verb: str) -> None:
    _, store, proxy, direct = through
    tag = await direct.put("key", b"old") if verb == "swap" else None
    held: list[Request] = []

    async def hold(request: Request) -> bytes | None:
        held.append(request)
        return None

    proxy.on_request = hold
    with pytest.raises(StoreUnavailable):
        if tag is None:
            await store.backend.put_if_absent("key", b"zombie")
        else:
            await store.backend.put_if_match("key", b"zombie", tag)
    winner = await direct.write("key", b"winner", tag)
    assert (await proxy.forward(held[0])).split()[1] in (b"409", b"412")
    assert await direct.get("key") == Stored(b"winner", winner, 6)


async def test_a_create_sent_again_after_its_first_try_landed_late_says_created(through: Through) -> None:
    _, store, proxy, direct = through

    async def late(request: Request) -> bytes | None:
        if not request.conditional_write:
            return await proxy.forward(request)
        if len(through.writes) == 1:
            return None
        assert (await proxy.forward(through.writes[0])).split()[1] in (b"200", b"201")
        return await proxy.forward(request)

    proxy.on_request = late
    created = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", created, 4)


@pytest.mark.parametrize(
    ("status", "code", "throttled"),
    [
        (503, "ServerBusy", True),
        (500, "InternalError", False),
        (429, "rateLimitExceeded", True),
        (408, "Timeout", False),
    ],
)
async def test_an_answer_that_says_try_again_is_tried_again(
    through: Through, status: int, code: str, throttled: bool
) -> None:
    _, store, proxy, direct = through

    async def busy_at_first(request: Request) -> bytes | None:
        return through.answer(status, code) if len(proxy.seen) == 1 else await proxy.forward(request)

    proxy.on_request = busy_at_first
    created = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", created, 4)
    assert store.failures == {"throttled" if throttled else "unavailable": 1}
    proxy.seen.clear()
    assert await store.get("key") == Stored(b"mine", created, 4)


@pytest.mark.parametrize(("status", "code"), [(403, "AuthorizationFailure"), (400, "InvalidInput"), (413, "TooLarge")])
async def test_a_write_that_was_applied_and_answered_with_a_refusal_is_found(
    through: Through, status: int, code: str
) -> None:
    _, store, proxy, direct = through

    async def apply_and_refuse(request: Request) -> bytes | None:
        given = await proxy.forward(request)
        return through.answer(status, code) if request.write else given

    proxy.on_request = apply_and_refuse
    tag = await store.create("key", b"mine")
    tag = await store.swap("key", b"later", tag)
    assert await direct.get("key") == Stored(b"later", tag, 5)


async def test_a_write_whose_answer_lacks_its_version_is_found(through: Through) -> None:
    _, store, proxy, direct = through

    async def drop_version(request: Request) -> bytes | None:
        given = await proxy.forward(request)
        if not request.write:
            return given
        return re.sub(rb"(?i)\r\netag:[^\r]*", b"", given).replace(b'"generation"', b'"degeneration"'[:12])

    proxy.on_request = drop_version
    tag = await store.create("key", b"mine")
    assert await direct.get("key") == Stored(b"mine", tag, 4)


async def test_a_write_that_is_refused_and_not_applied_is_refused(through: Through) -> None:
    _, store, proxy, direct = through

    async def refuse_writes(request: Request) -> bytes | None:
        return through.answer(403, "forbidden") if request.write else await proxy.forward(request)

    proxy.on_request = refuse_writes
    with pytest.raises(StoreRefused, match="forbidden"):
        await store.create("key", b"mine")
    assert await direct.get("key") is None


async def test_a_refused_create_with_an_object_there_is_a_conflict(through: Through) -> None:
    _, store, _, direct = through
    other = await direct.create("key", b"other")
    with pytest.raises(Conflict) as caught:
        await store.create("key", b"mine")
    assert caught.value.stored == Stored(b"other", other, 5)


@pytest.mark.parametrize("status", [409, 412])
async def test_azure_may_answer_a_create_that_lost_in_two_ways(azurite: BlobServer, status: int) -> None:
    """apache/arrow-rs-object-store#829"""
    code = {409: "BlobAlreadyExists", 412: "ConditionNotMet"}[status]

    async def refuse(request: Request) -> bytes | None:
        return reply(status, code) if request.write else await proxy.forward(request)

    url = await azurite.new_url()
    async with proxied(azurite) as (proxy, front), opened(url, front) as store:
        proxy.on_request = refuse
        with pytest.raises(ConditionFailed):
            await store.backend.put_if_absent("key", b"mine")


@pytest.mark.parametrize("server", clouds()[:2], indirect=True)
async def test_equal_bodies_have_different_tags(through: Through) -> None:
    backend = through.direct.backend
    tags = [await backend.put("key", b"same") for _ in range(3)]
    assert len(set(tags)) == 3


async def test_an_unchanged_object_is_not_sent_again(through: Through) -> None:
    _, store, proxy, direct = through
    tag = await direct.put("key", b"body" * 1000)
    answers: list[bytes] = []

    async def keep(request: Request) -> bytes:
        answers.append(await proxy.forward(request))
        return answers[-1]

    proxy.on_request = keep
    with pytest.raises(NotModified):
        await store.get("key", unless=tag)
    assert b"body" not in answers[0]
    assert answers[0].split()[1] == b"304"


async def test_a_body_cut_short_is_never_returned(through: Through) -> None:
    _, store, proxy, direct = through
    await direct.put("key", b"0123456789" * 1000)

    async def cut(request: Request) -> bytes:
        return (await proxy.forward(request))[:-1] if len(proxy.seen) == 1 else await proxy.forward(request)

    proxy.on_request = cut
    stored = await store.get("key")
    assert stored is not None
    assert stored.body == b"0123456789" * 1000
    assert len(proxy.seen) == 2


async def test_a_listing_cut_short_or_garbled_is_never_returned(through: Through) -> None:
    _, store, proxy, direct = through
    await direct.put("key", b"body")

    async def garble(request: Request) -> bytes | None:
        page = await proxy.forward(request)
        head, _, body = page.partition(b"\r\n\r\n")
        if len(proxy.seen) == 1:
            return page[:-5]
        if len(proxy.seen) == 2:
            plain = re.sub(rb"(?i)\r\n(content-length|transfer-encoding):[^\r]*", b"", head)
            return plain + b"\r\n\r\n" + body[: len(body) // 2]
        if len(proxy.seen) == 3:
            return b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n<html>hello<"
        return page

    proxy.on_request = garble
    assert [e.key for e in (await store.list("")).entries] == ["key"]
    assert len(proxy.seen) == 4


async def test_a_server_that_never_answers_costs_the_deadline_and_no_more(through: Through) -> None:
    _, store, proxy, _ = through

    async def silence(request: Request) -> None:
        await asyncio.Event().wait()

    proxy.on_request = silence
    store.limits = StoreLimits(timeout=0.5, patience=0.01)
    with pytest.raises(StoreUnavailable, match=r"no answer to put within 0\.5 s"):
        await store.put("key", b"body")


async def test_a_page_of_a_proxy_is_no_missing_object(through: Through) -> None:
    """A host that took it for one would believe that a checkpoint is gone."""
    _, store, proxy, _ = through

    async def lost(request: Request) -> bytes:
        body = b"<html><body><h1>404</h1>No upstream</body></html>"
        head = f"HTTP/1.1 404 X\r\nContent-Length: {0 if request.method == 'HEAD' else len(body)}\r\n".encode()
        return head + b"Connection: close\r\n\r\n" + (b"" if request.method == "HEAD" else body)

    proxy.on_request = lost
    with pytest.raises(StoreRefused, match="404"):
        await store.get("key")
    with pytest.raises(StoreRefused, match="404"):
        await store.get("key", tail=3)
    with pytest.raises(StoreRefused, match="404"):
        await store.backend.put_if_match("key", b"body", '"tag"')
    with pytest.raises(StoreRefused, match="404"):
        await store.delete("key")


@pytest.mark.parametrize("server", clouds()[:2], indirect=True)  # botocore follows one to the region of a bucket
async def test_a_redirect_is_not_followed(through: Through) -> None:
    """It would send a write, and the credentials, to another place."""
    _, store, proxy, _ = through

    async def elsewhere(request: Request) -> bytes:
        return b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    proxy.on_request = elsewhere
    with pytest.raises(StoreRefused, match="307"):
        await store.put("key", b"body")
    assert len(proxy.seen) == 1


async def test_the_probe_leaves_nothing_behind_even_where_replies_get_lost(through: Through) -> None:
    _, store, proxy, direct = through

    async def lose_some_replies(request: Request) -> bytes | None:
        lost = len(proxy.seen) % 13 == 0
        given = await proxy.forward(request)
        return None if lost else given

    proxy.on_request = lose_some_replies
    assert all(p.held for p in await probe(store, "probe/"))
    assert (await direct.list("")).entries == []


async def test_settling_needs_one_request_where_nothing_goes_wrong(through: Through) -> None:
    created = await through.store.create("key", b"body")
    assert len(through.proxy.seen) == 1
    assert await through.direct.get("key") == Stored(b"body", created, 4)


async def test_a_service_without_a_clock_is_refused(through: Through) -> None:
    _, store, proxy, _ = through

    async def no_date(request: Request) -> bytes:
        return re.sub(rb"(?i)\r\ndate:[^\r]*", b"", await proxy.forward(request))

    proxy.on_request = no_date
    with pytest.raises(StoreRefused, match="without a Date header"):
        await store.list("")


async def test_a_clock_of_the_service_that_differs_is_used(through: Through) -> None:
    """Deletion waits an hour by the store's clock, so this machine's must not count."""
    _, store, proxy, direct = through
    await direct.put("key", b"body")

    async def ahead(request: Request) -> bytes:
        page = await proxy.forward(request)
        return re.sub(rb"(?i)\r\ndate:[^\r]*", b"\r\nDate: Sun, 28 Nov 2100 12:00:00 GMT", page)

    proxy.on_request = ahead
    listing = await store.list("")
    assert listing.now == datetime(2100, 11, 28, 12, tzinfo=UTC).timestamp()
    assert store.time.now() > 4_000_000_000


async def test_requests_name_their_sender(server: Server) -> None:
    url = await server.new_url()
    async with proxied(server) as (proxy, front):
        async with open_store(url, Settings.load(**front.settings, store_user_agent="shop/7 (blue)")) as store:
            await store.put("key", b"body")
        agents = {request.headers["user-agent"] for request in proxy.seen}
    assert len(agents) == 1
    assert re.search(r"(^| )actorproc/\d\S* shop/7 \(blue\)$", agents.pop())
