"""Tests that a store keeps the properties on which safety rests. Some services ignore conditions and answer 200."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import anyio

from actorproc.errors import StoreError, StoreUnavailable, StoreUnsafe, first_contact
from actorproc.runtime.tasks import gather
from actorproc.storage.probe_checks import CHECKS, Bench, Broken, Check, Property
from actorproc.storage.store import Store

_LEFTOVER = 86400.0  # seconds after which a probe was certainly killed
_SWEPT = 1_000  # leftover keys deleted by one start


async def probe(store: Store, prefix: str) -> list[Property]:
    """Test all properties concurrently on own keys below `prefix` (ends with '/'), which are deleted afterwards.

    Raises:
        StoreUnavailable: no property was found broken, but the store did not answer within `store.limits.patience`.
        StoreAccessError: no property was found broken, but the store denied a request.
    """
    own = f"{prefix}{store.clock.nonce()}/"

    async def run(numbered: tuple[int, Check]) -> Property | StoreError:
        number, check = numbered
        try:
            return await _try(check, store, f"{own}{number}-")
        except StoreError as error:
            return error

    results = {check: result for (_, check), result in (await gather([*enumerate(CHECKS)], run)).items()}
    errors = [result for result in results.values() if isinstance(result, StoreError)]
    broken = any(isinstance(result, Property) and not result.held for result in results.values())
    if errors and not broken:
        with first_contact():
            raise errors[0]
    return [
        result if isinstance(result, Property) else check.result(held=False, found=f"it could not be tried: {result}")
        for check, result in results.items()
    ]


async def ensure_safe(store: Store, prefix: str) -> None:
    """Refuse a store that does not keep a property. Objects below `prefix` that are older than a day are deleted.

    Raises:
        StoreUnsafe: names the property, the test, its result and the consequence.
        StoreUnavailable, StoreAccessError: as `probe`.
    """
    for name, held, done, found, meaning in await probe(store, prefix):
        if not held:
            raise StoreUnsafe(
                f"{store.url} is not safe to use. It does not keep {name!r}: {done}: {found}. "
                f"So {meaning}. Use another service, or a newer version; `actorproc doctor {store.url}` shows more"
            )
    with suppress(StoreError), anyio.move_on_after(store.limits.timeout):  # the next start does it as well
        listing = await store.list(prefix, limit=_SWEPT)
        left = [entry.key for entry in listing.entries if listing.now - entry.modified > _LEFTOVER]
        await gather(left, store.delete)


async def _try(check: Check, store: Store, prefix: str) -> Property:
    """Run a check, and repeat it on fresh keys while the store is unavailable: a lost reply proves nothing."""
    clock, limits = store.clock, store.limits
    deadline = clock.monotonic() + limits.patience
    for attempt in count(1):
        bench = Bench(store, f"{prefix}{attempt}-")
        try:
            return check.result(held=True, found=await check.run(bench))
        except Broken as error:
            if not bench.doubtful:
                return check.result(held=False, found=str(error))
            failure = StoreUnavailable(f"{store.url}: {check.name!r} cannot be tried: writes are not answered")
        except StoreUnavailable as error:
            failure = error
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(limits.timeout):
                await bench.clean()
        delay = limits.backoff.delay(attempt, clock.random)
        if clock.monotonic() + delay >= deadline:
            raise failure
        await clock.sleep(delay)
    raise AssertionError("count() has no end")
