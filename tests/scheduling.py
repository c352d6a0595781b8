"""Assigns tests to the workers of a test run, and orders them."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_DEAR = ("spark", "kafka", "queue")
"""Parts of the names of files whose tests share a session or broker that is dear to start: they go to one worker."""

_FIRST = (*_DEAR, "tests/test_", "tests/simulation/", "tests/sources/", "tests/cli/")
"""Parts of the names of the longest files. These begin first, so that all workers end at about the same time."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A file stays in one worker, for its fixtures' sake."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((part for part in _DEAR if part in file), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # the order of `pytest_collection_modifyitems` stays
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, part in enumerate(_FIRST) if part in item.nodeid), len(_FIRST)))
