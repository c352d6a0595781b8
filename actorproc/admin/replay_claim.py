"""The claim on the unfinished part of a replay: without transactions, one replay at a time appends it.

Protocol: docs/protocol.md, 'Replay'.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from msgspec.structs import replace

from actorproc.admin.replay_state import ReplayState, deleted_meanwhile
from actorproc.errors import StoreError
from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import first_cause
from actorproc.storage.document import SharedDocument
from actorproc.storage.store import Conflict

EXPIRES = 20.0
"""Seconds without a renewal, by the clock of the replay that waits, after which a claim is taken over."""

_RENEW = EXPIRES / 4
_LOOK = 1.0  # how often a replay that waits reads the document


class ReplayClaim:
    """The claim of one replay on the last part in `document`.

    Args:
        needed: False if the stream has transactions: then any replay may append the part, and all methods do nothing.
    """

    def __init__(self, document: SharedDocument[ReplayState], clock: Clock, *, needed: bool) -> None:
        self.name = clock.nonce() if needed else ""
        self._document = document
        self._clock = clock

    async def taken(self, state: ReplayState) -> bool:
        """Claim the unfinished part; False if the document has changed first. Waits while another replay renews it.

        Args:
            state: the document, as it was just read or written.

        Raises:
            Conflict: another replay was first.
        """
        part, since = state.parts[-1], self._clock.monotonic()
        if not self.name or part.claim == self.name:
            return True
        while part.claim and self._clock.monotonic() - since < EXPIRES:
            await self._clock.sleep(_LOOK)
            found = await self._document.read()
            if found is None:
                raise deleted_meanwhile(self._document.key)
            if found != state:
                return False
        await self._document.swap(replace(state, parts=(*state.parts[:-1], replace(part, claim=self.name))))
        return True

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the claim while the block runs. If the block fails, its part is dropped, and nobody need wait for it.

        Raises:
            Conflict: another replay has taken the claim over; the block was cancelled.
        """
        if not self.name:
            yield
            return
        done = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                yield
                tasks.cancel_scope.cancel()
            done = True
        except ExceptionGroup as group:
            raise first_cause(group) from None
        finally:
            if not done:
                await self._give_back()

    async def _give_back(self) -> None:
        with anyio.CancelScope(shield=True), suppress(Conflict, StoreError):
            await self._document.change(lambda found: replace(self._own(found).settled((), ()), put_id=""))

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(_RENEW)
            # A write that is cut off half way might be applied later. After a StoreError the next one tries again.
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await self._document.change(lambda found: replace(self._own(found), put_id=""))

    def _own(self, found: ReplayState | None) -> ReplayState:
        """The document, as long as the claim is this replay's. Raises Conflict: it is not."""
        if found is None or found.pending is None or found.pending.claim != self.name:
            raise Conflict(self._document.key, None)
        return found
