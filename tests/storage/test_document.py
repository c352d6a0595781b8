"""Stored JSON documents, and compare-and-swap of a document."""

from __future__ import annotations

from typing import ClassVar

import anyio
import pytest

from actorproc.errors import CorruptObject
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.store import Conflict, Store
from actorproc.stores.memory import MemoryStore


class Counter(Document, frozen=True):
    count: int
    names: tuple[str, ...] = ()


class NewerCounter(Counter, frozen=True):
    newest_format_version: ClassVar[int] = 2


KEY = "counter.json"


def shared(store: Store) -> SharedDocument[Counter]:
    return SharedDocument(store, KEY, Counter)


def increased(counter: Counter | None) -> Counter:
    return Counter(counter.count + 1 if counter else 1)


def test_a_document_is_read_as_it_was_written() -> None:
    counter = Counter(3, ("a", "b"), put_id="x")
    assert counter.to_json() == b'{"count":3,"names":["a","b"],"put_id":"x","version":1}'
    assert Counter.from_json(KEY, counter.to_json()) == counter


def test_unknown_fields_are_ignored_and_new_fields_have_defaults() -> None:
    assert Counter.from_json(KEY, '{"version": 1, "count": 3, "colour": "red"}') == Counter(3)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"version": 1}',
        b'{"count": 3}',
        b'{"version": 1, "count": true}',
        b"[" * 99_999,
    ],
)
def test_a_corrupt_document_is_refused_with_its_key(body: bytes) -> None:
    with pytest.raises(CorruptObject, match=r"^counter\.json: is not a valid Counter document \(.*backup"):
        Counter.from_json(KEY, body)


def test_a_document_of_a_newer_format_asks_for_an_update() -> None:
    body = NewerCounter(3, format_version=2).to_json()
    assert NewerCounter.from_json(KEY, body).count == 3
    with pytest.raises(
        CorruptObject, match=r"has format version 2, and this actorproc reads up to 1: update actorproc"
    ):
        Counter.from_json(KEY, body)


async def test_change_creates_a_document_and_then_replaces_it() -> None:
    async with Store(MemoryStore()) as store:
        assert await shared(store).read() is None
        first, second = await shared(store).change(increased), await shared(store).change(increased)
        assert first is not None
        assert second is not None
        assert (first.count, second.count) == (1, 2)
        assert first.put_id != second.put_id
        assert await shared(store).read() == second


async def test_concurrent_changes_are_all_applied() -> None:
    async with Store(MemoryStore()) as store, anyio.create_task_group() as writers:
        for _ in range(8):
            writers.start_soon(shared(store).change, increased)
    stored = await shared(store).read()
    assert stored is not None
    assert stored.count == 8
    assert store.requests["get"] > 9  # some writers were second, and read the document that was there


@pytest.mark.parametrize("same", [lambda counter: counter, lambda counter: None])
async def test_change_writes_nothing_when_nothing_changes(same: object) -> None:
    async with Store(MemoryStore()) as store:
        before = await shared(store).change(increased)
        written = store.requests["put_if_match"]
        assert await shared(store).change(same) == before  # type: ignore[arg-type]
        assert store.requests["put_if_match"] == written


async def test_an_owner_swaps_repeatedly_without_reading() -> None:
    async with Store(MemoryStore()) as store:
        document = shared(store)
        for count in range(3):
            await document.swap(Counter(count))
        assert store.requests["get"] == 0
        assert document.current == await shared(store).read()


async def test_a_refused_swap_stays_refused_until_the_document_is_read() -> None:
    async with Store(MemoryStore()) as store:
        document, other = shared(store), shared(store)
        await document.swap(Counter(1))
        await other.read()
        await other.swap(Counter(2))
        for _ in range(2):
            with pytest.raises(Conflict) as conflict:
                await document.swap(Counter(3))
            assert conflict.value.stored is not None
            assert Counter.from_json(KEY, conflict.value.stored.body).count == 2
        await document.read()
        await document.swap(Counter(3))
        await other.read()
        assert other.current is not None
        assert other.current.count == 3


async def test_reading_an_unchanged_document_again_transfers_nothing() -> None:
    async with Store(MemoryStore()) as store:
        document = shared(store)
        await document.swap(Counter(1))
        assert await document.read() is document.current
