"""The list of readers: who is in it, under which name, and where they say they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from actorproc import Capture, Processor, Producer
from actorproc.admin import add_reader, remove_reader
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import plan_trim
from actorproc.errors import CorruptObject, UsageError
from actorproc.retention.boundary import Boundaries, raise_boundary
from actorproc.retention.readers import Reader, decide, lowest_numbers, read_registry, register, remove
from actorproc.sources import LogSource
from actorproc.storage.names import LOG_BOUNDARIES, READERS, ProcessorLayout, log_boundary
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from tests.admin.conftest import SETTINGS


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore())


async def test_many_that_register_at_once_are_all_in_it(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(register, store, READERS, Reader.at(f"reader-{n}", {"0": n}))
    readers = (await read_registry(store, READERS)).readers
    assert {name: reader.positions for name, reader in readers.items()} == {f"reader-{n}": {"0": n} for n in range(8)}


async def test_registering_a_known_reader_costs_one_get(store: Store) -> None:
    reader = Reader.spark("table", "s3a://bucket/checkpoints/table")
    await register(store, READERS, reader)
    before = store.requests.copy()
    registry = await register(store, READERS, reader)
    assert store.requests - before == {"get": 1}
    assert registry.readers == {"table": reader}


async def test_a_stored_reader_has_its_name_only_as_the_key(store: Store) -> None:
    """Earlier versions refuse a second name inside the reader."""
    await register(store, READERS, Reader.at("export", {"0": 7}))
    stored = await store.get(READERS)
    assert stored
    assert json.loads(stored.body)["readers"] == {"export": {"kind": "position", "positions": {"0": 7}}}


async def test_a_name_belongs_to_one_reader(store: Store) -> None:
    await register(store, READERS, Reader.spark("table", "s3://bucket/one"))
    with pytest.raises(UsageError, match=r"there is a reader 'table' already \(Spark checkpoint s3://bucket/one\)"):
        await register(store, READERS, Reader.spark("table", "s3://bucket/two"))
    await register(store, READERS, Reader.spark("table", "s3://bucket/two"), rename=True)
    assert set((await read_registry(store, READERS)).readers) == {"table", "table-2"}


async def test_who_got_another_name_keeps_it_when_its_own_gets_free(store: Store) -> None:
    """Otherwise the reader would be listed under both names, and the unused one would hold everything."""
    one, two = (Reader.spark("table", f"s3://bucket/{place}") for place in ("one", "two"))
    await register(store, READERS, one, rename=True)
    await register(store, READERS, two, rename=True)
    await remove(store, READERS, "table")
    registry = await register(store, READERS, two, rename=True)
    assert {name: reader.url for name, reader in registry.readers.items()} == {"table-2": "s3://bucket/two"}


async def test_who_was_added_by_hand_under_another_name_registers_as_that(store: Store) -> None:
    await register(store, READERS, Reader.spark("mine", "s3://bucket/one"))
    registry = await register(store, READERS, Reader.spark("table", "s3a://bucket/one"), rename=True)
    assert set(registry.readers) == {"mine"}


async def test_a_checkpoint_belongs_to_the_query_that_was_started_on_it_first(store: Store) -> None:
    place = "s3://bucket/one"
    await register(store, READERS, Reader.spark("mine", place))
    await register(store, READERS, Reader.spark("app.delays", place, "app:delays"), rename=True)
    with pytest.raises(
        UsageError,
        match=r"^the checkpoint s3://bucket/one belongs to app:delays: app:late .*`actorproc readers remove mine ",
    ):
        await register(store, READERS, Reader.spark("app.late", place, "app:late"), rename=True)
    await register(store, READERS, Reader.spark("mine", place))  # again by hand: it stays whose it is
    assert (await read_registry(store, READERS)).readers == {"mine": Reader.spark("mine", place, "app:delays")}


async def test_positions_by_hand_are_not_one_reader_because_they_have_no_place(store: Store) -> None:
    await register(store, READERS, Reader.at("one", {"0": 1}), rename=True)
    registry = await register(store, READERS, Reader.at("two", {"0": 2}), rename=True)
    assert set(registry.readers) == {"one", "two"}


async def test_a_position_is_not_moved_below_the_trimmed_records(store: Store) -> None:
    await register(store, READERS, Reader.at("export", {"0": 5, "1": 7}))
    assert await decide(store, READERS, await read_registry(store, READERS), {"0": 4})
    await register(store, READERS, Reader.at("export", {"0": 4, "1": 0}))
    with pytest.raises(UsageError, match=r"partition 0: 3, trimmed below 4\)"):
        await register(store, READERS, Reader.at("export", {"0": 3, "1": 0}))
    assert (await read_registry(store, READERS)).readers["export"].positions == {"0": 4, "1": 0}


async def test_moving_one_partition_leaves_other_positions_unchanged(store: Store) -> None:
    await register(store, READERS, Reader.at("export", {"0": 5, "1": 7}))
    await register(store, READERS, Reader.at("export", {"0": 6}))
    assert (await read_registry(store, READERS)).readers["export"].positions == {"0": 6, "1": 7}


async def test_partitions_that_are_moved_at_once_are_all_moved(store: Store) -> None:
    await register(store, READERS, Reader.at("export", dict.fromkeys("0123", 1)))
    async with anyio.create_task_group() as tasks:
        for n in range(4):
            tasks.start_soon(register, store, READERS, Reader.at("export", {str(n): 2}))
    assert (await read_registry(store, READERS)).readers["export"].positions == dict.fromkeys("0123", 2)


async def test_a_trim_decided_for_other_readers_is_refused(store: Store) -> None:
    seen = await read_registry(store, READERS)
    await register(store, READERS, Reader.at("export", {"0": 0}))
    assert not await decide(store, READERS, seen, {"0": 4})
    seen = await read_registry(store, READERS)
    await remove(store, READERS, "export")
    assert not await decide(store, READERS, seen, {"0": 4})
    assert (await read_registry(store, READERS)).lowest == {}


async def test_a_new_reader_begins_at_the_decided_trim(store: Store) -> None:
    boundaries = Boundaries(LOG_BOUNDARIES)
    await raise_boundary(store, log_boundary("1"), 3)
    await decide(store, READERS, await read_registry(store, READERS), {"0": 4, "1": 2})
    assert await lowest_numbers(store, READERS, boundaries) == {"0": 4, "1": 3}


async def test_removing_an_unknown_reader_names_the_known_ones(store: Store) -> None:
    with pytest.raises(UsageError, match="no reader 'x'; there are: none"):
        await remove(store, READERS, "x")
    await register(store, READERS, Reader.at("export", {}))
    with pytest.raises(UsageError, match="no reader 'x'; there are: export"):
        await remove(store, READERS, "x")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3a://bucket/checkpoints", "s3://bucket/checkpoints"),
        ("s3://bucket/checkpoints", "s3://bucket/checkpoints"),
        ("file:/var/checkpoints", "file:///var/checkpoints"),
        ("file:///var/checkpoints", "file:///var/checkpoints"),
        ("with: colon/x", f"file://{Path.cwd()}/with: colon/x"),
        ("file://checkpoints", f"file://{Path.cwd()}/checkpoints"),
        ("/var/checkpoints", "file:///var/checkpoints"),
        ("checkpoints", f"file://{Path.cwd()}/checkpoints"),
    ],
)
def test_a_checkpoint_is_where_spark_says_it_is(given: str, kept: str) -> None:
    assert Reader.spark("table", given).url == kept


@pytest.mark.parametrize("place", ["hdfs://host/checkpoints", "hdfs:/checkpoints", "dbfs:/checkpoints", "s3:/bucket/x"])
def test_a_checkpoint_that_we_cannot_read_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match=f"^{place}: actorproc has no store there to read positions from"):
        Reader.spark("table", place)


@pytest.mark.parametrize(
    "reader",
    [
        '{"kindness": 1}',
        '{"kind": "processor", "url": "s3://bucket/state", "processor": {}}',
        '{"kind": "processor", "url": 7, "processor": "Delays"}',
        '{"kind": "position", "positions": {"0": "7"}}',
        '{"kind": "position", "positions": [7]}',
        '{"kind": "kafka"}',
        "7",
    ],
)
async def test_a_corrupt_registry_is_named(store: Store, reader: str) -> None:
    document = f'{{"version": 1, "readers": {{"x": {reader}}}, "lowest": {{}}, "put_id": ""}}'
    await store.put(READERS, document.encode())
    with pytest.raises(CorruptObject, match=r"readers\.json: is not a valid Registry document"):
        await read_registry(store, READERS)


async def test_a_program_adds_and_removes_readers(tmp_path: Path) -> None:
    log, container = tmp_path / "log", tmp_path / "state"
    async with Producer(log, partitions=2) as producer:
        await producer.send_many([b"1", b"2"])
    await Processor(Capture, source=log, container=container, lease_renew_interval="1s").run(until_end=True)

    archive = Reader.at("archive", {"0": 0, "1": 0})
    await add_reader(archive, log=log)
    await add_reader(archive, container=container, name="Capture")
    async with open_store(str(log)) as store:
        readers = (await read_registry(store, READERS)).readers
        assert (set(readers), readers["archive"]) == ({"archive", "Capture"}, archive)
    await remove_reader("archive", container=container, name="Capture")
    with pytest.raises(UsageError, match="no reader 'archive'; there are: none"):
        await remove_reader("archive", container=container, name="Capture")
    with pytest.raises(UsageError, match=r"no processor 'Delays'.*there are: Capture"):
        await add_reader(archive, container=container, name="Delays")
    with pytest.raises(UsageError, match="give the name and container of a processor"):
        await add_reader(archive, container=container)


@pytest.mark.parametrize("number", [150.0, True, -5, 2**63, "150", None, np.float64(150)])
def test_a_reader_position_must_be_a_whole_number(number: Any) -> None:
    """A corrupt entry would make the whole list unreadable."""
    with pytest.raises(UsageError, match=r"^reader 'archive', partition 0: .* must be a whole number from 0"):
        Reader.at("archive", {"0": number})


@pytest.mark.parametrize("positions", [{"0": np.int64(150)}, {0: 150}])
async def test_positions_may_be_numpy_integers(store: Store, positions: Any) -> None:
    await register(store, READERS, Reader.at("archive", positions))
    assert (await read_registry(store, READERS)).readers["archive"].positions == {"0": 150}


async def test_a_position_in_a_partition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with Producer(tmp_path, partitions=2):
        pass
    with pytest.raises(UsageError, match=r"^reader 'archive' of log at .*: no partition '7'; there are: 0, 1$"):
        await add_reader(Reader.at("archive", {"0": 0, "7": 5}), log=tmp_path)
    async with open_store(tmp_path) as store:
        assert (await read_registry(store, READERS)).readers == {}


def test_places_of_readers_may_be_paths() -> None:
    place = Path("place")
    assert Reader.spark("table", place) == Reader.spark("table", "place")
    assert Reader.of_processor(place, "Delays") == Reader.of_processor("place", "Delays")


def test_a_name_that_is_no_text_is_refused() -> None:
    name: Any = 5
    with pytest.raises(UsageError, match="reader name 5 is not usable"):
        Reader.at(name, {"0": 1})


class Wrapped(LogSource):
    """A wrapper around a log that has no identity."""

    async def open(self) -> None:
        await super().open()
        self.identity = None


async def test_a_processor_whose_source_has_no_identity_may_be_a_reader(tmp_path: Path) -> None:
    async with Producer(tmp_path / "log", partitions=1) as producer:
        await producer.send(b"1")
    processor = Processor(Capture, source=Wrapped(tmp_path / "log"), container=tmp_path / "state", name="Own")
    await processor.run(until_end=True)
    reader = Reader.of_processor(tmp_path / "state", "Own")
    await add_reader(reader, log=tmp_path / "log")


async def test_a_processor_of_another_stream_is_refused_as_a_reader(
    tmp_path: Path,
) -> None:
    """Its positions are in something else: it would hold nothing, or too little."""
    log, other, container = tmp_path / "log", tmp_path / "other", tmp_path / "state"
    for place in (log, other):
        async with Producer(place, partitions=1) as producer:
            await producer.send(b"1")
    for name, source in (("Upstream", log), ("Other", other)):
        processor = Processor(Capture, source=source, container=container, name=name, lease_renew_interval="1s")
        await processor.run(until_end=True)

    down = Reader.of_processor(container, "Other", name="Down")
    upstream: dict[str, Any] = {"container": container, "name": "Upstream"}
    with pytest.raises(
        UsageError, match=r"Other in .* belongs to another stream: output Upstream at .* is not file://"
    ):
        await add_reader(down, **upstream)
    with pytest.raises(
        UsageError, match=r"Other in .* belongs to another stream: log at .*/log is not file://.*/other"
    ):
        await add_reader(down, log=log)
    await add_reader(down, log=other)

    async with open_store(container) as store:
        kept = RetainedOutput(store, ProcessorLayout("Upstream"))
        await register(store, kept.readers, down)  # as it was let in once
        [hold] = [partition.hold for partition in (await plan_trim(kept, SETTINGS)).partitions]
        assert hold.why == "the position of reader Down cannot be read"
