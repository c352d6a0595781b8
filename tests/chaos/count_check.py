"""The keyed state of a run and each running value in its rows, compared with a direct computation from the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from actorproc.errors import CorruptObject
from actorproc.handler.keyed_state import TIMERS
from actorproc.state.reading import read_state
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from tests.chaos.counts import Key, Session, count, count_key, keeps_counts, wrong_timer
from tests.chaos.truth import Sent
from tests.chaos.verdict import Pass, Row, Verdict
from tests.chaos.workload import key_of


async def check_counts(
    store: Store, layout: ProcessorLayout, records: Mapping[str, Sequence[Sent]], verdict: Verdict
) -> list[str]:
    """Compare each running value, and the state that everybody can read, with those of a direct computation."""
    faults = []
    for partition, sents in sorted(records.items()):
        counts: dict[Key, int] = {}
        sessions: dict[Key, Session] = {}
        for one in verdict.passes[partition] if keeps_counts(partition) else ():
            if one.cleared:
                counts.clear()
                sessions.clear()
            faults += _check_rows(partition, sents, one, counts, sessions)
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
    partition: str, sents: Sequence[Sent], one: Pass, counts: dict[Key, int], sessions: dict[Key, Session]
) -> list[str]:
    faults = []
    times = list(accumulate((sent.time for sent in sents), max))
    for sequence in range(max(0, one.after), len(sents) if one.upto is None else one.upto + 1):
        producer, number, time = sents[sequence]
        found: Row | None = next(iter(one.rows.get(sequence, [])[-1:]), None)
        if sequence > one.after and (found is not None or sequence in one.given_up):
            expected = count(counts, sessions, count_key(key_of(producer, number), number), time)
            if found is not None and expected != (values := {name: found[name] for name in expected}):
                faults.append(
                    f"partition {partition}: record {sequence} has the running values {values}, not {expected}"
                )
        # After a reset stream time may be further than the records of this pass.
        stream_time = times[-1] if one.cleared or one.after >= 0 else times[sequence]
        wrong = [wrong_timer(row, sessions, stream_time) for row in one.timers.get(sequence, ())]
        faults += [f"partition {partition}, after record {sequence}: {why}" for why in wrong if why]
    return faults
