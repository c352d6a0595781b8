"""The API of operators: status, output, dead letters, readers, trim and compaction. `cli/` is a thin layer above it."""

from __future__ import annotations

from actorproc.admin.compact import compact
from actorproc.admin.readers import add_reader, remove_reader
from actorproc.retention.readers import Reader

__all__ = ["Reader", "add_reader", "compact", "remove_reader"]
