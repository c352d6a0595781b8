"""Our loggers: structlog as the application has configured it; if it has not, `logging`, as of any other library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

TOLD_AGAIN = 10.0
"""Seconds after which the log tells again of what goes on unchanged."""


def get_logger(name: str) -> Any:
    """A structlog logger for a module. How it logs is decided when it is bound or used, not now."""
    return _Undecided(name)


class _Undecided:
    """structlog's own defaults print everything, down to debug, to stdout: not for a library to do."""

    def __init__(self, name: str) -> None:
        self._name = name

    def bind(self, **fields: Any) -> Any:
        if structlog.is_configured():
            return structlog.get_logger(self._name).bind(**fields)
        return structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_text],
            wrapper_class=structlog.stdlib.BoundLogger,
        ).bind(**fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bind(), name)


class Repeats:
    """When the log is to tell of what comes again and again: at once if it is another than before, else now and then."""

    def __init__(self) -> None:
        self._told: object = None
        self._told_at = float("-inf")
        self._times = 0

    def due(self, what: object, now: float) -> int:
        """It has come at `now`, in seconds. How often since it was told last, this time among them; 0: it is not to be told now."""
        self._times += 1
        if what == self._told and now < self._told_at + TOLD_AGAIN:
            return 0
        times, self._times, self._told, self._told_at = self._times, 0, what, now
        return times


def _as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """What `logging` is called with: the event and its fields as one text."""
    error = event.pop("exc_info", None)
    return (" ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())]),), {
        "exc_info": error
    }


@contextmanager
def slowness_told(log: Any, waiting_for: str) -> Iterator[None]:
    """While inside, a warning every ten seconds: what is waited for is the user's, and may never end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    due: asyncio.TimerHandle | None = None

    def tell() -> None:
        nonlocal due
        if due is not None:
            log.warning("processor.slow", waiting_for=waiting_for, seconds=round(loop.time() - began))
        due = loop.call_later(TOLD_AGAIN, tell)

    tell()
    try:
        yield
    finally:
        if due is not None:
            due.cancel()
