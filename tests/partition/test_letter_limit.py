"""When a partition stops for its dead letters: exactly when there are too many in some window of records in a row."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest

from actorproc import PartitionContext, Processor, Record, RecordHandler
from actorproc.config.settings import Settings
from actorproc.errors import TooManyDeadLetters
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.records import Batch
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

QUICK: dict[str, Any] = {
    "retry_backoff": 0.001,
    "retry_backoff_max": 0.002,
    "restart_backoff": 0.001,
    "restart_backoff_max": 0.002,
}


def records(start: int, stop: int) -> Batch:
    return Batch.of("0", [b"x"] * (stop - start), range(10 * start, 10 * stop, 10))


def stops(limit: DeadLetterLimit, failed: list[int]) -> bool:
    try:
        for number in failed:
            limit.failed(10 * number, "bad")
    except TooManyDeadLetters:
        return True
    return False


def too_many(failed: set[int], records: int, share: float, window: int) -> bool:
    """The result by a look at every window."""
    return any(
        len(failed & set(range(end - window, end))) > share * min(window, max(end, 100))
        for end in range(1, records + 1)
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_does_not_depend_on_the_order_of_failures(seed: int) -> None:
    random, stopped = Random(seed), 0
    for _ in range(30):
        window, share = random.choice([20, 150, 300]), random.choice([0.05, 0.2, 0.5])
        limit = DeadLetterLimit(Settings(dead_letter_window=window, dead_letter_limit=share))
        all_failed: set[int] = set()
        start = 0
        while start < 400:
            stop = start + random.choice([1, 50, 200])
            rate = random.choice([0, 0.05, 0.3])
            failed = [number for number in range(start, stop) if random.random() < rate]
            random.shuffle(failed)
            all_failed.update(failed)
            limit.begin(records(start, stop))
            stopped_here = stops(limit, failed)
            assert stopped_here == too_many(all_failed, stop, share, window)
            if stopped_here:
                stopped += 1
                break
            start = stop
    assert 0 < stopped < 30


def test_a_limit_of_one_never_stops() -> None:
    limit = DeadLetterLimit(Settings(dead_letter_limit=1))
    limit.begin(records(0, 3000))
    assert not stops(limit, [*range(2999, 1500, -1), *range(1501)])


def test_failures_before_a_stop_are_forgotten_when_processed_again() -> None:
    limit = DeadLetterLimit(Settings())
    limit.begin(records(0, 80))
    assert stops(limit, list(range(80)))
    limit.begin(records(0, 80))
    assert not stops(limit, list(range(30, 80)))


def test_dead_letters_that_the_handler_has_committed_count_after_a_restart() -> None:
    limit = DeadLetterLimit(Settings())
    limit.begin(records(0, 80))
    assert stops(limit, list(range(51)))
    limit.begin(records(40, 80))  # 40 of them are committed
    assert not stops(limit, list(range(40, 50)))
    assert stops(limit, [50])


@pytest.mark.parametrize("seed", range(8))
def test_records_processed_again_after_a_restart_count_once(seed: int) -> None:
    random, stopped = Random(seed), 0
    for _ in range(30):
        window, share = random.choice([20, 150, 300]), random.choice([0.1, 0.3, 0.5])
        limit = DeadLetterLimit(Settings(dead_letter_window=window, dead_letter_limit=share))
        bad = {number for number in range(400) if random.random() < random.choice([0, 0.1, 0.6])}
        start = committed = 0
        while start < 400:
            stop = start + random.choice([1, 7, 50])
            limit.begin(records(start, stop))
            stopped_here = stops(limit, sorted(bad & set(range(start, stop)), key=lambda _: random.random()))
            assert stopped_here == too_many(bad & set(range(stop)), stop, share, window)
            if stopped_here:
                stopped += 1
            committed = random.choice([committed, start, stop, random.randint(committed, stop)])
            if stopped_here and committed > start:
                break
            start = committed if stopped_here or random.random() < 0.3 else stop
            if stopped_here and random.random() < 0.2:
                break
    assert stopped > 0


def test_the_message_names_the_most_frequent_error_and_the_ways_out() -> None:
    limit = DeadLetterLimit(Settings())
    limit.begin(records(0, 80))
    with pytest.raises(TooManyDeadLetters) as caught:
        for number in range(51):
            limit.failed(10 * number, ValueError("odd one") if number in (3, 50) else KeyError("delay"))
    message = str(caught.value)
    assert "51 of the latest 100" in message
    assert "49 of them with KeyError, such as: 'delay'" in message
    assert "raise dead_letter_limit (1 switches it off)" in message
    assert message.endswith("to pass over records that raise, let on_error return Decision.SKIP")


def test_the_message_names_the_reason_for_records_that_the_handler_gave_up() -> None:
    limit = DeadLetterLimit(Settings())
    limit.begin(records(0, 80))
    with pytest.raises(TooManyDeadLetters, match=r"with ctx\.dead_letter, such as: too old"):
        for number in range(51):
            limit.failed(10 * number, "too old")


class Sorted(RecordHandler):
    """Gives up at once, fails, or makes a row, as the record says."""

    output_schema = "n bigint"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, int] | None:
        number, what = record.json()
        if what == "give up":
            ctx.dead_letter(record, "given up")
            return None
        if what == "fail":
            raise ValueError("bad")
        return {"n": number}


async def processed(whats: list[str], **settings: Any) -> tuple[int, int]:
    source = MemorySource(1)
    source.append("0", [orjson.dumps([number, what]) for number, what in enumerate(whats)])
    processor = Processor(Sorted, source=source, container=Store(MemoryStore()), host="a", **QUICK, **settings)
    await processor.run(until_end=True)
    supervisor = processor.statistics()
    return supervisor.counts.rows, supervisor.counts.dead_letters


async def test_a_tenth_of_bad_records_is_no_alarm() -> None:
    whats = ["ok"] * 500
    whats[0:60:10] = ["fail"] * 6
    whats[110:470:8] = ["give up"] * 45
    assert await processed(whats) == (449, 51)


async def test_at_most_once_loses_nothing_however_many_fail() -> None:
    whats = ["fail"] * 99 + ["give up"] * 101 + ["ok"] * 800
    assert await processed(whats, delivery="at-most-once") == (800, 200)
