"""Lines into a log: reads JSON lines in blocks, takes the key out of each, and sends them as columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import orjson

from actorproc.clock import SYSTEM, Clock
from actorproc.errors import UsageError
from actorproc.outgoing import Deliveries
from actorproc.payloads import VALUE_LIMIT
from actorproc.producer import Producer

BLOCK = 2**20
"""Bytes read at once, at most: from a pipe it is what is there."""

_UNCONFIRMED = 64  # blocks under way before the oldest must be confirmed, so that a failure is seen soon
_PACE = 0.1  # seconds; how finely a rate is kept


class LineReader(Protocol):
    """A binary file: `open(path, 'rb')`, `sys.stdin.buffer`, `gzip.open(path)`."""

    def read1(self, size: int, /) -> bytes: ...


class Produced(NamedTuple):
    """What has been sent. `unkeyed`: records in which the key's field is missing or null, or that are no JSON object."""

    records: int
    bytes: int
    unkeyed: int


async def produce_lines(
    producer: Producer,
    lines: LineReader,
    *,
    key: str | None = None,
    rate: float | None = None,
    progress: Callable[[Produced], None] = lambda _: None,
    clock: Clock = SYSTEM,
) -> Produced:
    """Send each line that is not blank as a record. On return all of them are in the log.

    A line is sent as it is, without its line break, also if it is no JSON: what to do about that is the handler's to
    say. Such a record has no key, which `Produced.unkeyed` tells.

    Args:
        lines: read from where it stands to its end; a pipe is followed as it comes.
        key: field whose value is the key: text as it is, anything else as JSON.
        rate: records per second, at most.
        progress: called after each block.

    Raises:
        StoreError: some records could not be appended, or nobody knows.
        UsageError: the rate is none.
    """
    if rate is not None and not rate > 0:
        raise UsageError(f"rate = {rate!r}: more than 0 records per second")
    sent = Produced(0, 0, 0)
    began = clock.monotonic()
    unconfirmed: deque[Deliveries] = deque()
    begun: list[bytes] = []  # pieces of a line whose end was not read yet
    while True:
        block = await clock.offload(lines.read1, BLOCK, abandon=True)
        head, found, tail = block.rpartition(b"\n")
        if block and not found:
            begun.append(block)
            if len(begun) * BLOCK > VALUE_LIMIT + BLOCK and sum(map(len, begun)) > VALUE_LIMIT:
                raise UsageError(
                    f"a line after record {sent.records} has more than {VALUE_LIMIT} bytes: is this a file of lines?"
                )
            continue
        values = _lines_of(b"".join([*begun, head]))
        begun = [tail]
        step = len(values) if rate is None else max(1, int(rate * _PACE))
        for start in range(0, len(values), step or 1):
            part = values[start : start + step]
            keys = _keys_of(part, key) if key is not None else None
            unconfirmed.append(await producer.send_many(part, keys=keys))
            missing = keys.count(None) if keys is not None else 0
            sent = Produced(sent.records + len(part), sent.bytes + sum(map(len, part)), sent.unkeyed + missing)
            if len(unconfirmed) > _UNCONFIRMED:
                await unconfirmed.popleft().confirmed()
            if rate is not None:
                await clock.sleep(max(0.0, began + sent.records / rate - clock.monotonic()))
        progress(sent)
        if not block:
            break
    await producer.flush()
    return sent


def _lines_of(block: bytes) -> list[bytes]:
    return [line for line in block.replace(b"\r\n", b"\n").split(b"\n") if line and not line.isspace()]


def _keys_of(lines: list[bytes], field: str) -> list[str | bytes | None]:
    parse = orjson.loads
    try:
        keys = [parse(line)[field] for line in lines]
    except (ValueError, LookupError, TypeError):
        keys = [_key_of(line, field) for line in lines]
    return [key if type(key) is str or key is None else orjson.dumps(key) for key in keys]


def _key_of(line: bytes, field: str) -> object:
    try:
        document = orjson.loads(line)
    except ValueError:
        return None
    return document.get(field) if isinstance(document, dict) else None
