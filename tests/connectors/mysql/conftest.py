"""One server for all tests of this folder, and one whose defaults are as odd as they can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.connectors.mysql.server import mariadb
from tests.servers import REQUIRED, Unavailable

_ODD = (
    "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT", "--transaction-isolation=SERIALIZABLE",
    "--character-set-server=latin1", "--default-storage-engine=Aria", "--completion-type=RELEASE",
    "--max-allowed-packet=1M", "--autocommit=1", "--sql-safe-updates=1",
)  # fmt: skip


@contextmanager
def _or_skip(*options: str, zone: str | None = None) -> Iterator[str]:
    try:
        with mariadb(*options, zone=zone) as found:
            yield found
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with _or_skip() as found:
        yield found


@pytest.fixture(scope="session")
def odd_url() -> Iterator[str]:
    with _or_skip(*_ODD, zone="Europe/Berlin") as found:
        yield found
