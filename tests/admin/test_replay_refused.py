"""A letter that its stream refuses fails alone: it stays a letter, and each other letter is replayed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import pyarrow as pa
import pytest

from actorproc import Batch
from actorproc.admin.replay import Replay
from actorproc.admin.replay_state import Letter, ReplayState, replayed_sequences
from actorproc.admin.replay_target import AppendableTarget
from actorproc.errors import SourceError
from actorproc.handler.info import PartitionInfo
from actorproc.output.letter import read_letters, render_letter
from actorproc.runtime.clock import Clock
from actorproc.sources.replay_target import Appendable, Outcome
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.memory import MemoryStore
from tests.fragile import CLOCK, Fate, Fragile, Killed, Shuffled

LAYOUT = ProcessorLayout("flights")
KEY = LAYOUT.dead_letter_file("1", 0)
LETTERS = 9
BAD = {0, 4, 8}


class Topic:
    """A stream with transactions that refuses values above a limit. It keeps the outcome of each batch.

    Args:
        names: whether it says which records it refuses.
    """

    url, identity, kind = "topic", "id", ""
    letters_at_once: int | None = None
    has_transactions = True

    def __init__(self, *, names: bool = True, bad: set[int] = BAD) -> None:
        self.values: list[int] = []
        self.asked = 0
        self._names, self._bad = names, bad
        self._batches: dict[tuple[str, int], bool] = {}  # whether it is void

    def has_partition(self, partition: str) -> bool:
        return True

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        await anyio.sleep(0)
        self.asked += 1
        values = [int(value) for value in records.column("value").to_pylist()]
        refused = {index: f"{value} is odd" for index, value in enumerate(values) if value in self._bad}
        if (found := self._batches.get((transaction, batch))) is not None:
            return Outcome(is_void=found)
        self._batches[transaction, batch] = bool(refused)
        if refused:
            return Outcome(refused, is_void=True) if self._names else Outcome(is_void=True, reason="one is odd")
        self.values += values
        return Outcome()

    async def readers(self) -> list[str]:
        return []


class Queue(Appendable):
    """A stream without transactions, which refuses some values."""

    appended_at_once = 4

    def __init__(self) -> None:
        self.values: list[int] = []
        self.fails = False

    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        if self.fails:
            raise SourceError("no answer")
        values = [record.json() for record in records]
        self.values += [value for value in values if value not in BAD]
        return {index: f"{value} is odd" for index, value in enumerate(values) if value in BAD}


@pytest.fixture
async def container() -> MemoryStore:
    return await filled()


async def filled() -> MemoryStore:
    """With the dead letters of records 0 to 8 in one file."""
    backend = MemoryStore()
    batch = Batch.of("1", [b"%d" % n for n in range(LETTERS)], range(LETTERS))
    site = PartitionInfo("flights", "host-a", "1", 3)
    await backend.put(KEY, b"".join(render_letter(record, KeyError("delay"), 3, site, Clock()) for record in batch))
    return backend


def everything(letter: Letter) -> bool:
    return True


def only(*sequences: int) -> Callable[[Letter], bool]:
    return lambda letter: letter["sequence"] in sequences


def replay_into(target: Topic | AppendableTarget, backend: MemoryStore | Fragile) -> Replay:
    return Replay(Store(backend, limits=StoreLimits(patience=0)), "flights", target)


async def done(backend: MemoryStore) -> set[int]:
    store = Store(backend)
    return await replayed_sequences(store, LAYOUT, KEY, await read_letters(store, KEY))


GOOD = sorted(set(range(LETTERS)) - BAD)


@pytest.mark.parametrize("names", [True, False])
async def test_refused_letters_stay_and_the_others_are_replayed(container: MemoryStore, names: bool) -> None:
    topic = Topic(names=names)
    replay = replay_into(topic, container)
    assert await replay.file(KEY) == (len(GOOD), 0)
    assert sorted(topic.values) == GOOD
    assert replay.refused == {("1", n): f"{n} is odd" if names else "one is odd" for n in BAD}
    assert await done(container) == set(GOOD)
    again = replay_into(topic, container)
    assert await again.file(KEY) == (0, len(GOOD))
    assert again.refused.keys() == replay.refused.keys()
    assert await replay_into(topic, container).file(KEY, only(4), value=b"40") == (1, 0)
    assert sorted(topic.values) == [*GOOD, 40]
    assert await done(container) == {*GOOD, 4}


async def test_refused_letters_without_a_name_are_found_by_bisection(container: MemoryStore) -> None:
    topic = Topic(names=False, bad={0})
    assert await replay_into(topic, container).file(KEY) == (LETTERS - 1, 0)
    assert topic.asked <= 8, "4 halvings, then parts that double"


async def test_a_part_that_another_release_left_unfinished_is_settled(container: MemoryStore) -> None:
    """Its document has format version 2, and its letters were refused for as long as the part was tried whole."""
    body = (
        b'{"parts":[{"claim":"","done":false,"log":"id","sequences":null,"value":null}],"put_id":"p",'
        b'"transaction":"replay-1","version":2}'
    )
    await container.put(LAYOUT.replay("1", 0), body)
    topic = Topic()
    assert await replay_into(topic, container).file(KEY, only(4)) == (0, 0)
    assert await replay_into(topic, container).file(KEY) == (len(GOOD), 0)
    assert sorted(topic.values) == GOOD


async def test_an_older_release_does_not_read_a_document_with_void_batches(container: MemoryStore) -> None:
    async def found() -> ReplayState:
        state = await SharedDocument(Store(container), LAYOUT.replay("1", 0), ReplayState).read()
        assert state is not None
        return state

    topic = Topic()
    await replay_into(topic, container).file(KEY, only(1))
    assert (await found()).format_version == 2
    await replay_into(topic, container).file(KEY)
    state = await found()
    assert (state.format_version, state.void, len(state.parts)) == (4, 1, 2)
    await replay_into(topic, container).file(KEY)
    assert len((await found()).parts) == 2, "what is refused again and again takes no room"


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_replay_with_refused_letters_killed_at_any_write_repeats_nothing(how: str, names: bool) -> None:
    fate = Fate()
    await replay_into(Topic(names=names), Fragile(await filled(), fate)).file(KEY)
    assert fate.writes >= 4
    for number in range(fate.writes):
        backend, topic = await filled(), Topic(names=names)
        with pytest.raises((Killed, BaseExceptionGroup)):
            await replay_into(topic, Fragile(backend, Fate(number, how))).file(KEY)
        await replay_into(topic, backend).file(KEY)
        assert sorted(topic.values) == GOOD, number
        assert await done(backend) == set(GOOD)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("seed", range(20))
async def test_replays_at_once_with_refused_letters_repeat_nothing(seed: int, names: bool) -> None:
    CLOCK.random.seed(seed)
    backend, topic = await filled(), Topic(names=names)
    appended = 0

    async def replay(wanted: Callable[[Letter], bool]) -> None:
        nonlocal appended
        counts = await Replay(Store(Shuffled(backend, Fate())), "flights", topic).file(KEY, wanted)
        assert counts is not None
        appended += counts[0]

    async with anyio.create_task_group() as tasks:
        for wanted in (everything, only(0, 1, 2), only(4, 5)):
            tasks.start_soon(replay, wanted)
    assert (sorted(topic.values), appended) == (GOOD, len(GOOD))
    assert await done(backend) == set(GOOD)


async def test_without_transactions_a_refused_letter_fails_alone(container: MemoryStore) -> None:
    queue = Queue()
    replay = replay_into(AppendableTarget("queue", "id", queue), container)
    assert await replay.file(KEY) == (len(GOOD), 0)
    assert queue.values == GOOD
    assert replay.refused == {("1", n): f"{n} is odd" for n in BAD}
    assert await done(container) == set(GOOD)


async def test_without_transactions_letters_of_a_failed_request_hold_up_no_others(container: MemoryStore) -> None:
    queue = Queue()
    queue.fails = True
    with pytest.raises(SourceError):
        await replay_into(AppendableTarget("queue", "id", queue), container).file(KEY, only(0, 1))
    queue.fails = False
    assert await replay_into(AppendableTarget("queue", "id", queue), container).file(KEY, only(5)) == (1, 0)
    assert queue.values == [5]
    into = Topic()
    into.identity = "another"
    assert await replay_into(into, container).file(KEY, only(1)) == (1, 0)
    assert into.values == [1]


async def test_a_refused_part_of_a_letter_refuses_the_whole_letter() -> None:
    """Several records may be one letter."""
    backend = MemoryStore()
    batch = Batch.of("1", [b"1", b"4", b"2"], [10, 11, 12])
    site = PartitionInfo("flights", "host-a", "1", 3)
    whole = render_letter(batch[-1], "late", 1, site, Clock(), earlier=batch[:-1])
    other = render_letter(Batch.of("1", [b"7"], [13])[0], "late", 1, site, Clock())
    await backend.put(KEY, whole + other)
    topic = Topic()
    replay = replay_into(topic, backend)
    assert await replay.file(KEY) == (1, 0)
    assert (topic.values, replay.refused) == ([7], {("1", 12): "4 is odd"})
