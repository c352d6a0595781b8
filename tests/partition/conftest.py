"""A fixture for tests of memory: Python's garbage collector is off, so what is freed is freed by counting."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collector_off() -> Iterator[None]:
    """What is not freed by counting stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
