"""Where the processor `Delays` keeps things, and the JSON lines that commands print: what the tests of reading commands share."""

from __future__ import annotations

from typing import Any

import orjson

from actorproc.storage.names import ProcessorLayout

LAYOUT = ProcessorLayout("Delays")


def lines(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]
