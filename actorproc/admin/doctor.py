"""Examines a store: the properties that safety depends on, the latency of its requests, and its clock."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import anyio

from actorproc.errors import StoreError
from actorproc.storage.probe import probe
from actorproc.storage.probe_checks import Property
from actorproc.storage.store import Store

T = TypeVar("T")

_ROUNDS = 5
_PREFIX = "doctor/"


@dataclass(frozen=True, slots=True)
class Examination:
    """The result for one store."""

    properties: Sequence[Property]
    latency_ms: Mapping[str, float]
    """Median milliseconds of each request; empty if a property does not hold."""
    clock_difference: float
    """Seconds by which the store's clock is ahead of this machine's."""
    warnings: Sequence[str] = ()
    """Settings of the bucket that cost money or delete needed objects."""

    @property
    def safe(self) -> bool:
        return all(found.held for found in self.properties)


async def examine(store: Store) -> Examination:
    """Test the store with small objects below `doctor/`, which are deleted afterwards.

    Raises:
        StoreError: the store does not answer, or refuses the requests.
    """
    properties = await probe(store, _PREFIX)
    latency = await _latency(store) if all(found.held for found in properties) else {}
    return Examination(properties, latency, await _clock_difference(store), await store.backend.warnings())


async def _latency(store: Store) -> dict[str, float]:
    """Median milliseconds of each request, one at a time, on a store that is safe."""
    clock = store.clock
    taken: dict[str, list[float]] = {}

    async def timed(verb: str, request: Awaitable[T]) -> T:
        began = clock.monotonic()
        answer = await request
        taken.setdefault(verb, []).append((clock.monotonic() - began) * 1000)
        return answer

    async def round_of(key: str) -> None:
        tag = await timed("put_if_absent", store.create(key, clock.nonce().encode()))
        await timed("put_if_match", store.swap(key, clock.nonce().encode(), tag))
        await timed("put", store.put(key, b"latency"))
        await timed("get", store.get(key))
        await timed("list", store.list(_PREFIX))
        await timed("delete", store.delete(key))

    for _ in range(_ROUNDS):
        key = f"{_PREFIX}{clock.nonce()}"
        try:
            await round_of(key)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(store.limits.timeout), suppress(StoreError):
                await store.delete(key)
            raise
    return {verb: round(median(times), 2) for verb, times in taken.items()}


async def _clock_difference(store: Store) -> float:
    """Rounded to tenths; S3 has whole seconds only."""
    before = store.clock.wall()
    now = (await store.list(_PREFIX, limit=1)).now
    return round(now - (before + store.clock.wall()) / 2, 1) + 0.0  # turns -0.0 into 0.0
