"""Google Cloud Storage as a store: `gs://BUCKET/prefix`."""

from actorproc.connectors.gcs.store import CloudStorageStore

__all__ = ["CloudStorageStore"]
