"""A store on which every file is old enough for a trim."""

from __future__ import annotations

from actorproc.retention.boundary import RETENTION
from actorproc.storage.backend import Backend, Listing, Stored


class Aged(Backend):
    """A store on which everything seems more than an hour older than it is: so nothing is spared for its age."""

    def __init__(self, truth: Backend) -> None:
        self._truth = truth
        self.url = truth.url

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._truth.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        return await self._truth.put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self._truth.put_if_absent(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._truth.put_if_match(key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        listing = await self._truth.list(prefix, after, limit)
        return Listing(listing.entries, listing.now + RETENTION + 60.0)

    async def delete(self, key: str) -> None:
        await self._truth.delete(key)
