"""Stores that kill their process at a chosen write, to test that work can be resumed."""

from __future__ import annotations

from contextlib import suppress

from anyio.lowlevel import checkpoint

from actorproc.errors import ConditionFailed
from actorproc.runtime.clock import Clock
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.stores.memory import MemoryStore


class Killed(BaseException):
    """The process is dead; nothing catches this."""


class Fragile(Backend):
    """Counts the writes of all stores that share a `Fate`, and applies the fate to one of them."""

    def __init__(self, truth: MemoryStore, fate: Fate) -> None:
        self.truth, self.fate, self.url = truth, fate, truth.url

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self.truth.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        return await self.fate.write(self.truth, "put", key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self.fate.write(self.truth, "put_if_absent", key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self.fate.write(self.truth, "put_if_match", key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self.truth.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self.truth.delete(key)


Write = tuple[MemoryStore, str, tuple[object, ...]]


class Fate:
    """The fate of write number `number`, from 0.

    Args:
        how: "before": the process is killed and the write is never applied. "after": it is applied first. "late": the
            process is killed, and `land` applies the write.
        landing: number of the write before which the late write is applied.
    """

    def __init__(
        self, number: int | None = None, how: str = "", *, lands: Write | None = None, landing: int = 0
    ) -> None:
        self.number, self.how = number, how
        self.writes = 0
        self.pending: Write | None = lands
        self.landing = landing

    async def write(self, truth: MemoryStore, verb: str, *args: object) -> str:
        number, self.writes = self.writes, self.writes + 1
        if self.number is None and number == self.landing:
            await self.land()
        if number == self.number:
            if self.how == "after":
                await getattr(truth, verb)(*args)
            elif self.how == "late":
                self.pending = (truth, verb, args)
            raise Killed
        return str(await getattr(truth, verb)(*args))

    async def land(self) -> None:
        if self.pending is not None:
            truth, verb, args = self.pending
            self.pending = None
            with suppress(ConditionFailed):
                await getattr(truth, verb)(*args)


class Shuffled(Fragile):
    """Every request takes a random number of steps of the event loop before and after it is applied."""

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        await self.dawdle()
        try:
            return await super().get(key, unless=unless, tail=tail)
        finally:
            await self.dawdle()

    async def put_if_absent(self, key: str, body: bytes) -> str:
        await self.dawdle()
        try:
            return await super().put_if_absent(key, body)
        finally:
            await self.dawdle()

    async def dawdle(self) -> None:
        for _ in range(CLOCK.random.randrange(8)):
            await checkpoint()


CLOCK = Clock(seed=0)
