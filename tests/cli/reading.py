"""Shared by tests of commands that read: the layout of the processor `Delays`, and the JSON lines of a command."""

from __future__ import annotations

from typing import Any

import orjson

from actorproc.storage.names import ProcessorLayout

LAYOUT = ProcessorLayout("Delays")


def lines(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]
