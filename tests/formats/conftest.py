"""A real schema registry, one for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.formats import registry_server
from tests.formats.registry_server import Registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with servers.or_skip(registry_server.registry(tmp_path_factory.mktemp("registry"))) as started:
        yield started
