"""Our loggers: structlog as the application has configured it; if it has not, `logging`, as of any other library."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


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


def _as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """What `logging` is called with: the event and its fields as one text."""
    error = event.pop("exc_info", None)
    return (" ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())]),), {
        "exc_info": error
    }
