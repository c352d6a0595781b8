"""Hooks of the hosts of a run: a line in the log of the process for each delivery to a sink, to be counted."""

from __future__ import annotations

import orjson

from actorproc.handler.hooks import Event, Hooks

DELIVERED = "chaos.delivered"


class DeliveryLines(Hooks):
    """One write each: a kill leaves whole lines, and part of one."""

    async def delivered(self, event: Event) -> None:
        line = {"event": DELIVERED, "level": "debug", "sink": event.sink, "time": event.time, "upto": event.upto}
        print(orjson.dumps(line).decode(), flush=True)
