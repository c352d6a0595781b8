"""A bearer token that many requests share: fetched once, renewed before it expires, and anew once it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from actorproc.errors import StoreError
from actorproc.runtime.clock import Clock

_AHEAD = 300.0  # seconds before its end in which a token is renewed
_FRESH = 30.0  # seconds in which a new token is not fetched again, although it is refused


class Token(NamedTuple):
    text: str
    expires_at: float
    """Seconds since 1970."""


class BearerTokens:
    """Args:
    fetch: gets a new token. Raises StoreError.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Token]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = anyio.Lock()
        self._token: Token | None = None
        self._fetched_at = 0.0

    async def get(self) -> str:
        """The token. While a renewal fails, the old one serves until it expires. Raises StoreError."""
        if (token := self._good(_AHEAD)) is not None:
            return token.text
        async with self._lock:
            if (token := self._good(_AHEAD)) is not None:  # fetched by another request meanwhile
                return token.text
            try:
                token = self._token = await self._fetch()
            except StoreError:
                if (token := self._good(0)) is None:
                    raise
            else:
                self._fetched_at = self._clock.monotonic()
            return token.text

    def refused(self) -> bool:
        """The service refused the token. True: it is new, so another one would be refused, too."""
        fresh = self._clock.monotonic() - self._fetched_at < _FRESH
        if not fresh:
            self._token = None
        return fresh

    def _good(self, ahead: float) -> Token | None:
        token = self._token
        return token if token is not None and token.expires_at - ahead > self._clock.wall() else None
