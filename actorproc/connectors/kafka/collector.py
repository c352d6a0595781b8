"""Switches Python's cycle collector off for a moment."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cycles are collected meanwhile, in any thread of the process.

    For code that makes thousands of objects without cycles and drops them: the collector would visit each several
    times. Pauses may overlap; the last one to end restores the collector.
    """
    global _pauses, _was_enabled  # noqa: PLW0603  # the collector is the process's, too
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
