"""The HTTP connector: committed rows as JSON in requests to a URL."""

from actorproc.connectors.http.sink import HttpSink

__all__ = ["HttpSink"]
