"""The ClickHouse connector: committed rows in a table, in blocks that the server knows again."""

from actorproc.connectors.clickhouse.sink import ClickHouseSink

__all__ = ["ClickHouseSink"]
