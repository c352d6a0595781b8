"""Explains in words why rows of a partition are not in its sinks yet."""

from __future__ import annotations

from collections.abc import Iterable

from actorproc.admin.durations import duration
from actorproc.admin.fleet_sinks import SinkView
from actorproc.admin.sinks import SinkStatus


def with_stored(reported: Iterable[SinkView], stored: Iterable[SinkStatus]) -> list[SinkView]:
    """The sinks of one partition as the container knows them, with the state that only its owner knows.

    Args:
        stored: read for this partition alone.
    """
    states = {view.name: view.state for view in reported}
    return [_view(sink, states.get(sink.name)) for sink in stored]


def _view(sink: SinkStatus, reported: str | None) -> SinkView:
    (found,) = sink.partitions or (None,)
    state = sink.state
    if state in ("behind", "up to date"):
        state = reported or ("running" if state == "up to date" else "no owner")
    return SinkView(
        name=sink.name, state=state, commits=None if found is None else found.behind,
        rows=None if found is None else found.rows, seconds=None if found is None else found.seconds,
        error=sink.error, error_since=sink.error_since,
    )  # fmt: skip


def explain_sinks(sinks: Iterable[SinkView], now: float) -> list[str]:
    """A sentence or two for each sink. `now`: seconds since 1970."""
    return [_explain(sink, now) for sink in sinks]


def _explain(sink: SinkView, now: float) -> str:
    if sink.commits == 0 and sink.state not in ("failing", "refusing"):
        paused = ", and is paused" if sink.state in ("paused", "pausing") else ""
        return f"Sink {sink.name} has all that is committed{paused}."
    return f"{_lacks(sink)}{_why(sink, now)}"


def _lacks(sink: SinkView) -> str:
    if sink.commits is None:
        return f"It is not known yet what sink {sink.name} has"
    if not sink.commits:
        return f"Sink {sink.name} has all that is committed, but takes nothing now"
    rows = "" if sink.rows is None else f" with {sink.rows:,} row{'s' * (sink.rows != 1)}"
    oldest = f", the oldest {duration(sink.seconds)} old" if sink.seconds else ""
    return f"Sink {sink.name} lacks {sink.commits:,} commit{'s' * (sink.commits != 1)}{rows}{oldest}"


def _why(sink: SinkView, now: float) -> str:
    since = f" for {duration(now - sink.error_since)}" if sink.error_since else ""
    error = f": {' '.join(sink.error.split()).rstrip('.?')}" if sink.error else ""
    match sink.state:
        case "refusing":
            return f". It has refused rows{since}{error}. Mend the target; then the delivery goes on where it stopped."
        case "failing":
            return (
                f". It has failed{since}{error}. The rows are kept in the container, and delivered once it takes them: "
                "only the target needs help."
            )
        case "paused" | "pausing":
            return f". An operator has paused it; `actorproc sinks resume {sink.name}` lets it go on."
        case "waiting for parents":
            return ". It gets them once it has all rows of the partitions that this one follows."
        case "no owner":
            return ". A host that has this sink delivers them: the owner of the partition; for a table one host does."
        case _:
            return ". The delivery is under way."
