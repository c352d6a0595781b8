"""Wakes one task when things have changed, and names them."""

from __future__ import annotations

import anyio


class Changes:
    """Names of things that have changed since they were last taken. One task waits for them."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._wake: anyio.Event | None = None  # while the task waits

    def add(self, name: str) -> None:
        """Note a change. It is cheap: it is called for each batch."""
        self._names.add(name)
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def take(self) -> set[str]:
        """The names of all that has changed since the last call."""
        names, self._names = self._names, set()
        return names

    async def wait(self, seconds: float) -> None:
        """Wait for a change, for `seconds` at most. Returns at once if one was not taken yet."""
        if not self._names:
            self._wake = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._wake.wait()
