"""Logs on stderr: readable lines on a terminal, JSON lines otherwise."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from io import StringIO
from typing import Any, TextIO

from actorproc.cli.escape import escaped
from actorproc.runtime.error_text import safe_repr, storable


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def set_up_logging(level: LogLevel) -> None:
    """Send structlog's events, and warnings of libraries that use `logging`, to stderr.

    Times are ISO 8601 in UTC. A traceback is text after the line on a terminal, the field `exception` in JSON.
    """
    # Imported here: they take longer than --help may.
    import orjson
    import structlog
    from structlog.typing import Processor

    def to_json(event: dict[str, Any], **_: object) -> str:
        try:
            return dumped(event)
        except TypeError:  # an integer beyond 64 bits, half a character; what is logged must not fail because of that
            return dumped({storable(str(name)): written(value) for name, value in event.items()})

    def dumped(value: object) -> str:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

    def written(value: object) -> object:
        try:
            dumped(value)
        except TypeError:
            return storable(value) if isinstance(value, str) else safe_repr(value)
        return value

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if sys.stderr.isatty():
        render = [_visibly, structlog.dev.ConsoleRenderer(exception_formatter=_traceback)]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(to_json)]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),  # a line is one write: workers share the stream
        cache_logger_on_first_use=False,  # the modules' loggers exist before the level is known
    )
    handler = _Stderr(logging.WARNING)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if not isinstance(other, _Stderr)] + [handler]
    logging.captureWarnings(capture=True)


def _visibly(_logger: object, _method: str, event: Any) -> Any:
    return {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(to: TextIO, error: Any) -> None:
    from structlog.dev import plain_traceback

    plain_traceback(text := StringIO(), error)
    to.write(escaped(text.getvalue()))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the moment."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr
