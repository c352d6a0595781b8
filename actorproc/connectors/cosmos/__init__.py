"""The change feed of a Cosmos DB container as a source. Needs the extra `cosmos`."""

from __future__ import annotations

from actorproc.runtime.requirements import how_to_install

try:
    import azure.cosmos  # noqa: F401
except ImportError:
    raise ImportError(f"a source of a Cosmos DB change feed needs azure-cosmos: {how_to_install('cosmos')}") from None

from actorproc.connectors.cosmos.source import CosmosSource

__all__ = ["CosmosSource"]
