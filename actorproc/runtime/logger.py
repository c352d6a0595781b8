"""Loggers: structlog as the application configured it, or else the standard `logging`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

REPEAT_INTERVAL = 10.0
"""Seconds after which a condition that lasts is logged again."""


_LATER: list[Callable[[], None]] = []


def set_up_later(set_up: Callable[[], None]) -> None:
    """Have structlog configured by `set_up` before it is used: importing it takes as long as a short command."""
    _LATER[:] = [set_up]


def set_up_now() -> None:
    """Configure structlog, if that is still to be done. For code that may use it directly."""
    while _LATER:
        _LATER.pop()()


def get_logger(name: str) -> Any:
    """A structlog logger for a module. Its configuration is looked up when it is bound or used."""
    return _LazyLogger(name)


class _LazyLogger:
    """Uses `logging` unless structlog is configured: structlog's defaults print everything to stdout, also debug."""

    def __init__(self, name: str) -> None:
        self._name = name

    def bind(self, **fields: Any) -> Any:
        set_up_now()
        import structlog  # with Rich, which it imports: see `set_up_later`

        if structlog.is_configured():
            return structlog.get_logger(self._name).bind(**fields)
        return structlog.wrap_logger(
            logging.getLogger(self._name),
            processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_text],
            wrapper_class=structlog.stdlib.BoundLogger,
        ).bind(**fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bind(), name)


class LogThrottle:
    """Logs a repeated event at once when it changes, and otherwise every `REPEAT_INTERVAL`."""

    def __init__(self) -> None:
        self._logged: object = None
        self._logged_at = float("-inf")
        self._times = 0

    def due(self, event: object, now: float) -> int:
        """Count an event at `now`, in seconds. Returns how many to log, this one included; 0 if none is to be logged
        yet.
        """
        self._times += 1
        if event == self._logged and now < self._logged_at + REPEAT_INTERVAL:
            return 0
        times, self._times, self._logged, self._logged_at = self._times, 0, event, now
        return times


def _as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """The arguments of the call of `logging`: event and fields as one text."""
    error = event.pop("exc_info", None)
    return (" ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())]),), {
        "exc_info": error
    }


@contextmanager
def warn_while_slow(log: Any, waiting_for: str) -> Iterator[None]:
    """Warn every `REPEAT_INTERVAL` that the block still waits for user code."""
    import asyncio  # --help needs none

    loop = asyncio.get_running_loop()
    began = loop.time()
    due: asyncio.TimerHandle | None = None

    def warn() -> None:
        nonlocal due
        if due is not None:
            log.warning("processor.slow", waiting_for=waiting_for, seconds=round(loop.time() - began))
        due = loop.call_later(REPEAT_INTERVAL, warn)

    warn()
    try:
        yield
    finally:
        if due is not None:
            due.cancel()
