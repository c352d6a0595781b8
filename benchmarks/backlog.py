"""Makes a long log quickly: JSON events of about 130 bytes, the same block again and again."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pyarrow as pa

from actorproc import Producer

_BLOCK = 100_000


async def make_backlog(log: Path, events: int, partitions: int) -> None:
    """Create the log and fill it."""
    draw = random.Random(11)
    values = pa.array(json_events(), pa.binary())
    keys = pa.array([b"%d" % draw.randrange(4_000) for _ in range(_BLOCK)], pa.binary())
    async with Producer(str(log), partitions=partitions) as producer:
        for start in range(0, events, _BLOCK):
            count = min(_BLOCK, events - start)
            await producer.send_many(values[:count], keys=keys[:count])


def json_events(count: int = _BLOCK) -> list[bytes]:
    """The same events each time."""
    draw = random.Random(7)
    return [_event(draw, i) for i in range(count)]


def _event(draw: random.Random, index: int) -> bytes:
    event = {
        "id": index,
        "carrier": draw.choice(["AA", "UA", "DL", "B6"]),
        "origin": draw.choice(["JFK", "EWR", "LGA"]),
        "dest": "LAX",
        "minutes": float(draw.randint(-20, 300)),
        "tail": f"N{draw.randint(1, 4000)}",
        "hour": "2013-01-01T05:00:00Z",
    }
    return orjson.dumps(event)
