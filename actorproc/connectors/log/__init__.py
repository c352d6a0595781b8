"""The built-in log as a sink: committed rows as records, keyed anew."""

from actorproc.connectors.log.sink import LogSink

__all__ = ["LogSink"]
