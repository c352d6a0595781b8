"""Tells Spark at once that what it sent to a task has come, where TCP would wait 40 ms for something to say as well.

Spark sends a task what to do and then, in a second small message, what to read. Nagle's algorithm (RFC 896) keeps the second
back until the first is acknowledged, and who receives it delays that (RFC 1122, 4.2.3.2).
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux alone; elsewhere it waits
_DESCRIPTORS = Path("/proc/self/fd")


class QuickAck:
    """What Spark sends to each task, pickled: unpickling it is the first that happens there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _QUICKACK is not None:
            with suppress(OSError):
                _acknowledge(_QUICKACK)


def _acknowledge(quickack: int) -> None:
    """Send the ACKs that the TCP connections of this process owe."""
    for descriptor in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed meanwhile, as is the one that listed them; or not TCP
            if descriptor.is_socket():
                # Left as it is: without a type that says so, a default timeout would make the connection itself non-blocking.
                kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
                connection = socket.socket(socket.AF_INET, kind, fileno=int(descriptor.name))
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, quickack, 1)
                finally:
                    connection.detach()
