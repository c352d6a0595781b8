"""The Redis connector: committed rows in a stream, together with the position, by one script."""

from actorproc.connectors.redis.sink import RedisSink

__all__ = ["RedisSink"]
