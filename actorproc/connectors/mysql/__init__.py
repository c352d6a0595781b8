"""The MySQL connector, also for MariaDB: committed rows in a table of a database. Needs the extra `mysql`."""

from actorproc.connectors.mysql.sink import MysqlSink

__all__ = ["MysqlSink"]
