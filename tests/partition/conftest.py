"""A fixture for tests of memory: Python's garbage collector is off, so that only reference counting frees memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Turn the garbage collector off: reference cycles stay in memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
