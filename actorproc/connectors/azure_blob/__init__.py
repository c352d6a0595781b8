"""Azure Blob Storage as a store, with or without a hierarchical namespace: `az://ACCOUNT/CONTAINER/prefix`."""

from actorproc.connectors.azure_blob.store import AzureBlobStore

__all__ = ["AzureBlobStore"]
