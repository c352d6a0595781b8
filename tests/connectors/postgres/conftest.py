"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.postgres.server import Postgres, postgres
from tests.servers import or_skip


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with or_skip(postgres()) as found:
        yield found
