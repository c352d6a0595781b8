"""Fixture that turns logging off for a whole test package: `from tests.quiet import silence`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)
