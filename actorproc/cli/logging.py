"""Logs on stderr: readable lines on a terminal, JSON lines otherwise, unless `--log-format` chooses."""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import Any, TextIO

from actorproc.cli.streams import escaped, has_color, json_escaped
from actorproc.runtime.error_text import safe_repr, storable
from actorproc.runtime.logger import set_up_later, set_up_now

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")

_FIRST = ("event", "level", "timestamp")


def set_up_logging(level: str, log_format: str | None = None) -> None:
    """Send the events of structlog, and warnings of libraries that use `logging`, to stderr.

    Times are ISO 8601 in UTC. A traceback is text after a readable line, and the field `exception` of a JSON line.

    Args:
        level: one of `LEVELS`.
        log_format: one of `FORMATS`; None: by whether stderr is a terminal.
    """
    handler = _Stderr(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if not isinstance(other, _Stderr)] + [handler]
    logging.captureWarnings(capture=True)
    set_up_later(lambda: _configure(handler, level, log_format))


def _configure(handler: _Stderr, level: str, log_format: str | None) -> None:
    import structlog
    from structlog.typing import Processor

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if log_format == "console" or (log_format is None and sys.stderr.isatty()):
        colors = has_color(sys.stderr)
        render = [_escaped, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]
    else:
        render = [structlog.processors.format_exc_info, _ordered, structlog.processors.JSONRenderer(_to_json)]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),  # a line is one write: workers share the stream
        cache_logger_on_first_use=False,  # the modules' loggers exist before the level is known
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )


def _ordered(_logger: object, _method: str, event: Any) -> Any:
    """The event, its level and its time come first."""
    first = {name: event[name] for name in _FIRST if name in event}
    return first | {name: value for name, value in event.items() if name not in first}


def _to_json(event: dict[str, Any], **_: object) -> str:
    try:
        return json_escaped(_dumped(event))
    except TypeError:  # an integer beyond 64 bits, half of a character: a log line must not fail because of it
        return json_escaped(_dumped({storable(str(name)): _storable(value) for name, value in event.items()}))


def _dumped(value: object) -> str:
    import orjson

    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _storable(value: object) -> object:
    try:
        _dumped(value)
    except TypeError:
        return storable(value) if isinstance(value, str) else safe_repr(value)
    return value


def _escaped(_logger: object, _method: str, event: Any) -> Any:
    return {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(to: TextIO, error: Any) -> None:
    from structlog.dev import plain_traceback

    plain_traceback(text := StringIO(), error)
    to.write(escaped(text.getvalue()))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the `sys.stderr` of the moment, in the format of structlog's events."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        set_up_now()
        return super().format(record)
