"""The demo: a year of real departures through three hosts, one of them killed, into Spark; checked against the raw data."""

from __future__ import annotations

from actorproc.errors import ActorprocError


class DemoFailed(ActorprocError):
    """The demo could not be played to its end; the message says what happened."""
