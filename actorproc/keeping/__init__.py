"""How long output and logs are kept: their readers, how far these are, and what may be trimmed. See docs/keeping.md."""

from __future__ import annotations

from actorproc.keeping.registry import Reader, register, remove

__all__ = ["Reader", "register", "remove"]
