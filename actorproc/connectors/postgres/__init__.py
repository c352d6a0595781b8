"""The PostgreSQL connector: committed rows in a table of a database."""

from actorproc.connectors.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
