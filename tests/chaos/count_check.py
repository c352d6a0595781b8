"""The keyed state of a run and each running value in its rows, compared with a direct computation from the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actorproc.errors import CorruptObject
from actorproc.handler.state import TIMERS
from actorproc.state.reading import read_state
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from tests.chaos.counts import Key, Session, count, count_key, is_timer_row, keeps_counts, wrong_timer
from tests.chaos.truth import Sent
from tests.chaos.verdict import Row, Verdict
from tests.chaos.workload import key_of


async def check_counts(
    store: Store, layout: ProcessorLayout, records: Mapping[str, Sequence[Sent]], verdict: Verdict
) -> list[str]:
    """Compare each running value, and the state that everybody can read, with those of a direct computation."""
    faults = []
    for partition, sents in sorted(records.items()):
        counts: dict[Key, int] = {}
        sessions: dict[Key, Session] = {}
        if keeps_counts(partition):
            faults += _check_rows(partition, sents, verdict, counts, sessions)
        try:
            found = await read_state(store, layout, partition)
        except CorruptObject as error:
            faults.append(f"partition {partition}: {error}")
            continue
        expected: dict[str, dict[Any, Any]] = {
            "counts": counts,
            "sessions": {key: msgspec.to_builtins(value) for key, value in sessions.items()},
        }
        for name, values in expected.items():
            if (held := dict(found.items(name))) != values:
                wrong = [key for key in held.keys() | values.keys() if held.get(key) != values.get(key)]
                compared = f"{wrong[0]!r} is {held.get(wrong[0])}, not {values.get(wrong[0])}"
                faults.append(f"partition {partition}: {len(wrong)} keys of state {name!r} are wrong: {compared}")
            verdict.seen[name] += len(values)
        if (timers := dict(found.items(TIMERS)).keys()) != sessions.keys():
            faults.append(f"partition {partition}: timers of {len(timers)} keys are set, not of {len(sessions)}")
    return faults


def _check_rows(
    partition: str, sents: Sequence[Sent], verdict: Verdict, counts: dict[Key, int], sessions: dict[Key, Session]
) -> list[str]:
    rows: dict[int, Row] = {row["_sequence"]: row for row in verdict.rows[partition] if not is_timer_row(row)}
    timers: defaultdict[int, list[Row]] = defaultdict(list)
    for row in filter(is_timer_row, verdict.rows[partition]):
        timers[row["_sequence"]].append(row)
    faults, stream_time = [], 0.0
    for sequence, (producer, number, time) in enumerate(sents):
        found, stream_time = rows.get(sequence), max(stream_time, time)
        if found is not None or sequence in verdict.given_up[partition]:
            expected = count(counts, sessions, count_key(key_of(producer, number), number), time)
            if found is not None and expected != (values := {name: found[name] for name in expected}):
                faults.append(
                    f"partition {partition}: record {sequence} has the running values {values}, not {expected}"
                )
        wrong = [wrong_timer(row, sessions, stream_time) for row in timers[sequence]]
        faults += [f"partition {partition}, after record {sequence}: {why}" for why in wrong if why]
    return faults
