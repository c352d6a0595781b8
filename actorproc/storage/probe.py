"""Proof, by doing, that a store keeps what safety rests on. Some services answer 200 and ignore the conditions."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import anyio

from actorproc.errors import StoreError, StoreUnavailable, StoreUnsafe, first_contact
from actorproc.runtime.tasks import gather
from actorproc.storage.probe_checks import CHECKS, Bench, Broken, Check
from actorproc.storage.store import Store

_LEFTOVER = 86400.0  # seconds after which nobody probes there any more: it was killed
_SWEPT = 1_000  # keys at once: one request


class Property(NamedTuple):
    """What was found out about one property. `done`: what was tried; `found`: what came of it; `meaning`: of a failure."""

    name: str
    held: bool
    done: str
    found: str
    meaning: str


async def probe(store: Store, prefix: str) -> list[Property]:
    """Try every property on keys of our own under `prefix` (ends with '/'), which are removed afterwards.

    Takes a second or so: the properties are tried at the same time. Always in the same order.

    Raises:
        StoreUnavailable: nothing was found broken, but the store did not answer often enough within
            `store.limits.patience` to tell.
        PlaceRefused: likewise, but the store does not allow a request.
    """
    bench = Bench(store, f"{prefix}{store.clock.nonce()}/")
    results: dict[int, Property | StoreError] = {}

    async def run(index: int) -> None:
        try:
            results[index] = await _try(CHECKS[index], bench)
        except StoreError as error:
            results[index] = error

    try:
        async with anyio.create_task_group() as tasks:
            for index in range(len(CHECKS)):
                tasks.start_soon(run, index)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(store.limits.timeout):
            await bench.clean()
    errors = [result for result in results.values() if isinstance(result, StoreError)]
    broken = any(isinstance(result, Property) and not result.held for result in results.values())
    if errors and not broken:
        with first_contact():
            raise errors[0]
    return [_told(CHECKS[index], results[index]) for index in range(len(CHECKS))]


def _told(check: Check, result: Property | StoreError) -> Property:
    """Beside a broken property, one that could not be tried is no longer news."""
    if isinstance(result, Property):
        return result
    return Property(check.name, False, check.done, f"it could not be tried: {result}", check.meaning)


async def ensure_safe(store: Store, prefix: str) -> None:
    """Refuse a store that does not keep a property. `prefix` is for probes alone: what was left there a day ago goes.

    Raises:
        StoreUnsafe: names the property, what was tried, what came of it and what it would lead to. Else as `probe`.
    """
    for name, held, done, found, meaning in await probe(store, prefix):
        if not held:
            raise StoreUnsafe(
                f"{store.url} is not safe to use. It does not keep {name!r}: {done}: {found}. "
                f"So {meaning}. Use another service, or a newer version; `actorproc doctor {store.url}` tells all"
            )
    with suppress(StoreError), anyio.move_on_after(store.limits.timeout):  # the next start does it as well
        listing = await store.list(prefix, limit=_SWEPT)
        left = [entry.key for entry in listing.entries if listing.now - entry.modified > _LEFTOVER]
        await gather(left, store.delete)


async def _try(check: Check, bench: Bench) -> Property:
    """Run a check, on fresh keys again where the store was unavailable: a lost reply proves nothing, nor does a doubled write."""
    clock, limits = bench.store.clock, bench.store.limits
    give_up = clock.monotonic() + limits.patience
    attempt = 0
    while True:
        attempt += 1
        try:
            return Property(check.name, True, check.done, await check.run(bench), check.meaning)
        except Broken as error:
            return Property(check.name, False, check.done, str(error), check.meaning)
        except StoreUnavailable:
            delay = limits.backoff.delay(attempt, clock.random)
            if clock.monotonic() + delay >= give_up:
                raise
            await clock.sleep(delay)
