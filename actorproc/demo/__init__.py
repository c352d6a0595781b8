"""The demo: a year of departures through three hosts, one of them killed, into Spark; checked against the CSV."""

from __future__ import annotations

from actorproc.errors import ActorprocError


class DemoFailed(ActorprocError):
    """The demo ended early; the message says why."""
