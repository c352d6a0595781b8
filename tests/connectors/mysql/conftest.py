"""One server for all tests of this folder, and one whose defaults are as odd as they can be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.mysql.server import mariadb
from tests.servers import or_skip

_ODD = (
    "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT", "--transaction-isolation=SERIALIZABLE",
    "--character-set-server=latin1", "--default-storage-engine=Aria", "--completion-type=RELEASE",
    "--max-allowed-packet=1M", "--autocommit=1", "--sql-safe-updates=1",
)  # fmt: skip


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with or_skip(mariadb()) as found:
        yield found


@pytest.fixture(scope="session")
def odd_url() -> Iterator[str]:
    with or_skip(mariadb(*_ODD, zone="Europe/Berlin")) as found:
        yield found
