"""The duties of every backend: one suite, run on each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from actorproc.errors import ConditionFailed
from actorproc.storage.backend import Backend, NotModified, Stored
from actorproc.storage.store import Conflict, Store

ROUNDS = 6


@pytest.fixture
def backend(store: Store) -> Backend:
    return store.backend


async def test_a_missing_object_reads_as_none(backend: Backend) -> None:
    assert await backend.get("nothing/here") is None
    assert await backend.get("nothing/here", tail=10) is None
    assert await backend.get("nothing/here", unless="tag") is None


async def test_an_object_is_read_with_the_tag_of_its_write(backend: Backend) -> None:
    tag = await backend.put("a/key", b"body")
    assert await backend.get("a/key") == Stored(b"body", tag, 4)


async def test_put_replaces_and_changes_the_tag(backend: Backend) -> None:
    first = await backend.put("key", b"one")
    second = await backend.put("key", b"two")
    assert first != second
    assert await backend.get("key") == Stored(b"two", second, 3)


async def test_rewrites_that_follow_at_once_never_share_a_tag(backend: Backend) -> None:
    tags = [await backend.put("key", b"%04d" % n) for n in range(30)]
    assert len(set(tags)) == 30
    for stale in tags[:-1]:
        with pytest.raises(ConditionFailed):
            await backend.put_if_match("key", b"late", stale)
    assert await backend.get("key") == Stored(b"0029", tags[-1], 4)


async def test_a_key_created_again_after_a_delete_has_another_tag(backend: Backend) -> None:
    tags = []
    for n in range(40):
        tags.append(await backend.put_if_absent("key", b"%04d" % n))
        await backend.delete("key")
    assert len(set(tags)) == 40


async def test_create_succeeds_once_and_keeps_the_first_body(backend: Backend) -> None:
    tag = await backend.put_if_absent("a/b/key", b"first")
    with pytest.raises(ConditionFailed):
        await backend.put_if_absent("a/b/key", b"second")
    assert await backend.get("a/b/key") == Stored(b"first", tag, 5)


async def test_match_replaces_the_version_it_names_and_no_other(backend: Backend) -> None:
    first = await backend.put_if_absent("key", b"one")
    second = await backend.put_if_match("key", b"two", first)
    with pytest.raises(ConditionFailed):
        await backend.put_if_match("key", b"three", first)
    assert await backend.get("key") == Stored(b"two", second, 3)


async def test_match_on_a_missing_key_is_refused_and_creates_nothing(backend: Backend) -> None:
    gone = await backend.put("key", b"body")
    await backend.delete("key")
    with pytest.raises(ConditionFailed):
        await backend.put_if_match("key", b"ghost", gone)
    assert await backend.get("key") is None


async def test_unless_answers_not_modified_until_the_object_changes(backend: Backend) -> None:
    first = await backend.put("key", b"one")
    with pytest.raises(NotModified):
        await backend.get("key", unless=first)
    second = await backend.put("key", b"two")
    assert await backend.get("key", unless=first) == Stored(b"two", second, 3)


@pytest.mark.parametrize(("tail", "expected"), [(1, b"9"), (4, b"6789"), (10, b"0123456789"), (99, b"0123456789")])
async def test_tail_reads_the_end_and_returns_the_whole_size(backend: Backend, tail: int, expected: bytes) -> None:
    tag = await backend.put("key", b"0123456789")
    assert await backend.get("key", tail=tail) == Stored(expected, tag, 10)


async def test_an_empty_body_is_an_object(backend: Backend) -> None:
    tag = await backend.put_if_absent("key", b"")
    assert await backend.get("key") == Stored(b"", tag, 0)
    assert await backend.get("key", tail=8) == Stored(b"", tag, 0)
    with pytest.raises(ConditionFailed):
        await backend.put_if_absent("key", b"x")


async def test_a_body_of_megabytes_survives(backend: Backend) -> None:
    body = os.urandom(9 * 2**20)
    tag = await backend.put_if_absent("big", body)
    assert await backend.get("big") == Stored(body, tag, len(body))
    assert await backend.get("big", tail=70_000) == Stored(body[-70_000:], tag, len(body))
    with pytest.raises(ConditionFailed):
        await backend.put_if_absent("big", os.urandom(9 * 2**20))


async def test_a_deleted_object_is_absent_and_a_second_delete_succeeds(backend: Backend) -> None:
    await backend.put("a/key", b"body")
    await backend.delete("a/key")
    await backend.delete("a/key")
    await backend.delete("never/was")
    assert await backend.get("a/key") is None
    assert (await backend.list("")).entries == []
    await backend.put_if_absent("a/key", b"again")


@pytest.mark.parametrize(
    "key", ["größe/ключ/鍵-🔑", "with space/and+plus/100%25&=?#", "a~b/c=d/e,f;g@h:i'j(k)!", "UPPER/lower"]
)
async def test_keys_may_hold_any_text(backend: Backend, key: str) -> None:
    tag = await backend.put_if_absent(key, b"body")
    assert await backend.get(key) == Stored(b"body", tag, 4)
    assert [(e.key, e.tag) for e in (await backend.list("")).entries] == [(key, tag)]
    assert [e.key for e in (await backend.list(key[:3])).entries] == [key]
    await backend.delete(key)
    assert await backend.get(key) is None


async def test_a_listing_shows_every_object_in_key_order_with_tag_and_size(backend: Backend) -> None:
    keys = ["a", "b-c", "b/c", "b/d", "b.d", "c/d/e", "c/d-e", "z"]
    tags = {key: await backend.put(key, key.encode()) for key in keys}
    entries = (await backend.list("")).entries
    assert [e.key for e in entries] == sorted(keys)
    assert {e.key: e.tag for e in entries} == tags
    assert all(e.size == len(e.key) for e in entries)


async def test_a_prefix_is_text_and_not_a_folder(backend: Backend) -> None:
    for key in ("part=1/a", "part=1/b", "part=10/a", "part=2/a", "other"):
        await backend.put(key, b"")
    listed = {
        p: [e.key for e in (await backend.list(p)).entries] for p in ("part=1", "part=1/", "pa", "nope", "part=1/b")
    }
    assert listed == {
        "part=1": ["part=1/a", "part=1/b", "part=10/a"],
        "part=1/": ["part=1/a", "part=1/b"],
        "pa": ["part=1/a", "part=1/b", "part=10/a", "part=2/a"],
        "nope": [],
        "part=1/b": ["part=1/b"],
    }


async def test_after_and_limit_walk_a_folder_in_pages(backend: Backend) -> None:
    keys = [f"d/{n:020d}.parquet" for n in range(7)]
    for key in keys:
        await backend.put(key, b"x")
    seen: list[str] = []
    while True:
        page = [e.key for e in (await backend.list("d/", after=seen[-1] if seen else "", limit=3)).entries]
        assert len(page) <= 3
        seen += page
        if len(page) < 3:
            break
    assert seen == keys
    assert [e.key for e in (await backend.list("d/", after="d/00000000000000000004")).entries] == keys[4:]
    assert [e.key for e in (await backend.list("", after=keys[3])).entries] == keys[4:]
    assert (await backend.list("d/", after=keys[-1])).entries == []
    assert (await backend.list("d/", after="e")).entries == []
    assert len((await backend.list("d/", after="c")).entries) == 7


async def test_a_listing_longer_than_a_page_of_the_service_is_whole(backend: Backend) -> None:
    keys = [f"many/{n:05d}" for n in range(1_050)]
    todo = iter(keys)

    async def work() -> None:
        for key in todo:
            await backend.put(key, b"x")

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(work)
    assert [e.key for e in (await backend.list("many/")).entries] == keys
    assert [e.key for e in (await backend.list("many/", limit=1_020)).entries] == keys[:1_020]
    assert [e.key for e in (await backend.list("many/", after="many/00030", limit=1_010)).entries] == keys[31:1_041]


async def test_ages_need_no_clock_of_ours(backend: Backend) -> None:
    await backend.put("key", b"body")
    listing = await backend.list("")
    age = listing.now - listing.entries[0].modified
    assert -2 < age < 60


async def _winners(racers: int, write: Callable[[bytes], Awaitable[str]]) -> dict[bytes, str]:
    won: dict[bytes, str] = {}

    async def run(body: bytes) -> None:
        with suppress(ConditionFailed):
            won[body] = await write(body)

    async with anyio.create_task_group() as tasks:
        for n in range(racers):
            tasks.start_soon(run, b"racer %d " % n * 50)
    return won


async def test_of_racing_creates_exactly_one_wins(backend: Backend, racers: int) -> None:
    for n in range(ROUNDS):
        key = f"race/{n}"
        won = await _winners(racers, lambda body, key=key: backend.put_if_absent(key, body))  # type: ignore[misc]
        ((body, tag),) = won.items()
        assert await backend.get(key) == Stored(body, tag, len(body))


async def test_of_racing_matches_exactly_one_wins(backend: Backend, racers: int) -> None:
    tag = await backend.put("race", b"start")
    for _ in range(ROUNDS):
        won = await _winners(racers, lambda body, tag=tag: backend.put_if_match("race", body + tag.encode(), tag))  # type: ignore[misc]
        ((body, new),) = won.items()
        body += tag.encode()
        assert await backend.get("race") == Stored(body, new, len(body))
        tag = new


async def test_no_increment_of_a_shared_counter_is_lost(store: Store, racers: int) -> None:
    await store.create("counter", b"0 start")

    async def increment(who: int) -> None:
        for n in range(4):
            while True:
                stored = await store.get("counter")
                assert stored is not None
                try:
                    await store.swap("counter", b"%d %d.%d" % (int(stored.body.split()[0]) + 1, who, n), stored.tag)
                    break
                except Conflict:
                    continue

    async with anyio.create_task_group() as tasks:
        for who in range(racers):
            tasks.start_soon(increment, who)
    stored = await store.get("counter")
    assert stored is not None
    assert int(stored.body.split()[0]) == 4 * racers
