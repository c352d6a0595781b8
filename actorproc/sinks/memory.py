"""`SinkMemory`: the memory that all deliveries of a host to one sink share."""

from __future__ import annotations

import anyio

from actorproc.runtime.budget import BufferTotal

_FILES = 8
"""Committed files that a host holds at once for a sink that is behind. A compacted one has some 128 MiB."""


class SinkMemory:
    """Recent commits, and files that are read again.

    Args:
        most: bytes of recent commits.
    """

    def __init__(self, most: int) -> None:
        self.recent = BufferTotal(most)
        self.files = anyio.CapacityLimiter(_FILES)
