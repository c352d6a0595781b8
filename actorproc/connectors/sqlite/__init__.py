"""The SQLite connector: committed rows in a table of a database file."""

from actorproc.connectors.sqlite.sink import SqliteSink

__all__ = ["SqliteSink"]
