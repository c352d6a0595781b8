"""What only S3 does, or only its client, behind a proxy that misbehaves. The rest: test_hazards."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed, SettingsError, StoreRefused, StoreUnavailable, StoreUnsafe
from actorproc.runtime.backoff import Backoff
from actorproc.storage.backend import Stored
from actorproc.storage.probe import ensure_safe, probe
from actorproc.storage.store import Conflict, StoreLimits
from tests.servers import S3Server
from tests.stores.proxy import Request, proxied, reply
from tests.stores.through import Through, opened, through_proxy

OK = (
    b'HTTP/1.1 200 OK\r\nETag: "x"\r\nDate: Sat, 21 Nov 2026 08:00:00 GMT\r\n'
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


@pytest.fixture
async def through(s3_server: S3Server) -> AsyncIterator[Through]:
    async with through_proxy(s3_server) as found:
        yield found


@pytest.mark.parametrize("failure", [b"503", b"hang up"])
async def test_a_store_whose_first_listing_fails_is_opened_all_the_same(s3_server: S3Server, failure: bytes) -> None:
    url = await s3_server.new_url()
    async with proxied(s3_server) as (proxy, front):

        async def fail_first(request: Request) -> bytes | None:
            if len(proxy.seen) == 1:
                return reply(503, "SlowDown") if failure == b"503" else None
            return await proxy.forward(request)

        proxy.on_request = fail_first
        async with opened(url, front) as store:
            assert await store.get("key") is None


async def test_a_conflict_answered_409_instead_of_412_is_a_conflict(through: Through) -> None:
    """As CoreWeave answers a create that lost."""
    _, store, proxy, direct = through
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
    store = through.store
    await store.put("small", b"x")
    await store.create("large", bytes(3 * 2**20))
    assert [r.headers.get("expect") for r in through.writes] == [None, None]


@pytest.mark.parametrize("text", ["two\nlines", "ünïcode", "", "x" * 201])
def test_a_sender_that_is_no_header_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="store_user_agent"):
        Settings.load(store_user_agent=text)


async def test_no_checksums_are_sent_that_services_may_not_know(through: Through) -> None:
    await through.store.create("key", b"body")
    (write,) = through.writes
    assert not [name for name in write.headers if "checksum" in name or name == "x-amz-trailer"]
    assert write.body == b"body"


async def test_a_server_that_ignores_conditions_is_refused_naming_the_property(through: Through) -> None:
    _, store, proxy, _ = through
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
    _, store, proxy, _ = through

    async def ignore_matches(request: Request) -> bytes | None:
        ignored = request.method == "PUT" and "if-match" in request.headers
        return await (proxy.forward_unconditionally(request) if ignored else proxy.forward(request))

    proxy.on_request = ignore_matches
    with pytest.raises(StoreUnsafe, match=r"'stale match'.*the stale write was accepted"):
        await ensure_safe(store, "probe/")


async def test_a_server_that_accepts_every_write_is_refused(through: Through) -> None:
    _, store, proxy, _ = through

    async def fine(request: Request) -> bytes:
        return await proxy.forward(request) if request.method == "GET" else OK

    proxy.on_request = fine
    with pytest.raises(
        StoreUnsafe, match=r"'read your write'.*after the first write, nothing was read instead of 'one'"
    ):
        await ensure_safe(store, "probe/")


async def test_a_server_that_answers_200_to_everything_is_refused_naming_the_property(through: Through) -> None:
    _, store, proxy, _ = through

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
