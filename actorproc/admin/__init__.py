"""Everything an operator does to a processor or a log: status, readers, trim, replay. `cli/` is a thin layer over it."""

from __future__ import annotations

from actorproc.admin.readers import add_reader, remove_reader
from actorproc.retention.readers import Reader

__all__ = ["Reader", "add_reader", "remove_reader"]
