"""Streams of Amazon Kinesis as a source: a partition is a shard."""

from __future__ import annotations

from actorproc.connectors.kinesis.source import KinesisSource

__all__ = ["KinesisSource"]
