"""`actorproc trace`: the outcome of a record."""

from __future__ import annotations

from datetime import datetime

import msgspec

from actorproc.admin.dead_letters import LetterId
from actorproc.admin.trace import MOST_ROWS, Pass, SinkTrace, Trace, trace
from actorproc.cli.common import OpenedProcessor, run_async
from actorproc.cli.loading import load_source
from actorproc.cli.terminal import print_json, print_line, utc


def run(opened: OpenedProcessor, record: str, source: str | None, as_json: bool) -> None:
    """Print the outcome of the record.

    Raises:
        UsageError: `record` is not PARTITION:SEQUENCE, or there is no such partition.
    """
    wanted = LetterId.parse(record)

    async def work() -> Trace:
        async with opened as (store, layout, settings):
            given = None if source is None else load_source(source)
            return await trace(store, layout, settings, wanted.partition, wanted.sequence, given)

    found = run_async(work)
    if as_json:
        print_json(msgspec.json.decode(msgspec.json.encode(found)))
    else:
        _print(found)


def _print(found: Trace) -> None:
    print_line(f"{found.partition}:{found.sequence}: {found.outcome}")
    shown = found.record
    if shown is None:
        print_line(f"record: {found.record_missing}")
    else:
        time = shown["timestamp"]
        shown_time = time.isoformat().replace("+00:00", "Z") if isinstance(time, datetime) else time or "-"
        print_line(f"record: {shown_time}  key={shown['key']}  {shown['value']}")
    for one in found.passes:
        print_line(_commit(one))
        for row in one.rows:
            print_line(f"  {bytes(row).decode()}")
        if one.count > MOST_ROWS:
            print_line(f"  and {one.count - MOST_ROWS:,} more")
    for sink in found.sinks:
        print_line(f"sink {sink.sink}: {_in_sink(sink)}")
    if found.letter is not None:
        error = found.letter["error"]
        print_line(f"dead letter: {found.letter['kind']}: {error['message']} ({found.letter['time']})")


def _in_sink(sink: SinkTrace) -> str:
    match sink.state:
        case "delivered":
            return "has its rows"
        case "partly":
            return f"may lack some of its rows: it gets commit {sink.next} next"
        case "waits":
            return f"lacks its rows: it gets commit {sink.next} next"
        case _:
            return "begins after its commits, and does not get its rows"


def _commit(one: Pass) -> str:
    if one.first != one.last:
        commit = f"commits {one.first} to {one.last}, compacted in {one.file}"
    else:
        commit = f"commit {one.first} of {utc(one.time)} by {one.host}, epoch {one.epoch}, in {one.file}"
    return f"{commit}:" if one.rows else commit
