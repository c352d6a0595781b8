"""The Iceberg connector: the output as a table of an Iceberg catalog, by metadata alone."""

from actorproc.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
