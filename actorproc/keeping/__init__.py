"""How long output and logs are kept: their readers, how far these are, and what may be trimmed. See docs/keeping.md."""

from __future__ import annotations

from actorproc.keeping.readers import add_reader, remove_reader
from actorproc.keeping.registry import Reader

__all__ = ["Reader", "add_reader", "remove_reader"]
