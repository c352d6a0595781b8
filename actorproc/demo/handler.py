"""The demo's handler, whole: how late each departure was. Copy it as a start for your own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from actorproc import Batch, Decision, PartitionContext, Record, RecordHandler


class NeverDeparted(Exception):
    """The flight was cancelled: there is no delay to compute."""


class Delays(RecordHandler):
    """One departure in, one row out. A record for which it raises an error becomes a dead letter."""

    output_schema = """
        carrier string, flight int, tail string, origin string, destination string,
        scheduled timestamp, minutes double
    """

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        event = record.json()
        if event["departed"] is None:
            raise NeverDeparted(f"{event['carrier']} {event['flight']} from {event['origin']} at {event['scheduled']}")
        scheduled = datetime.fromisoformat(event["scheduled"])
        departed = datetime.fromisoformat(event["departed"])
        return {
            "carrier": event["carrier"],
            "flight": event["flight"],
            "tail": event["tail"],
            "origin": event["origin"],
            "destination": event["destination"],
            "scheduled": scheduled,
            "minutes": (departed - scheduled).total_seconds() / 60,
        }

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        """Trying a cancelled flight again would not make it leave; anything else is retried as usual."""
        return Decision.DEAD_LETTER if isinstance(error, NeverDeparted) else None
