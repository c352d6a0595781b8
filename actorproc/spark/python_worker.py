"""Adapts our data source to Spark's Python worker processes: short errors, no needless garbage collection, quick
ACKs."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from actorproc.errors import SourceError, UsageError

P = ParamSpec("P")
T = TypeVar("T")

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only
_DESCRIPTORS = Path("/proc/self/fd")


def called_by_spark(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method that Spark calls. Usage and source errors lose their traceback, which Spark would print in full."""

    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        _freeze_imports()
        try:
            return method(*args, **kwargs)
        except (UsageError, SourceError) as error:
            raise error.with_traceback(None) from None

    return wrapper


@cache
def _freeze_imports() -> None:
    """Exempt everything imported so far from garbage collection, once per process.

    Spark collects garbage after each call and each task. Over all imported modules this takes 25 to 100 ms
    (docs/performance.md, "A full scan").
    """
    gc.freeze()


class QuickAck:
    """Base of everything that is pickled to the tasks. Unpickling it sends the TCP ACKs that this process owes.

    Spark sends a task its function and then, in a second small message, its input. Nagle's algorithm (RFC 896) holds
    the second message until the first is acknowledged, and TCP delays that ACK (RFC 1122, 4.2.3.2). Without this each
    task waits for 40 ms (docs/performance.md, "A full scan").
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _QUICKACK is not None:
            with suppress(OSError):
                _send_acks(_QUICKACK)


def _send_acks(quickack: int) -> None:
    for descriptor in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed in the meantime, or not TCP
            if descriptor.is_socket():
                # SOCK_NONBLOCK: otherwise a default timeout would make the connection itself non-blocking.
                kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
                connection = socket.socket(socket.AF_INET, kind, fileno=int(descriptor.name))
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, quickack, 1)
                finally:
                    connection.detach()
