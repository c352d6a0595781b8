"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.postgres.server import Postgres, postgres
from tests.servers import REQUIRED, Unavailable


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    try:
        with postgres() as found:
            yield found
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))
