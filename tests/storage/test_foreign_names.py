"""Foreign objects in our folders are ignored everywhere: Finder's files, placeholders of folders on S3, Hadoop's
checksums, copies made by hand."""

from __future__ import annotations

import pytest

from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.retained import RetainedLog, RetainedOutput
from actorproc.admin.trim import plan_trim
from actorproc.config.settings import Settings
from actorproc.log.positions import first_base, last_base
from actorproc.output.compaction import sweep
from actorproc.output.letter import dead_letters, letter_files
from actorproc.output.row_reader import all_slices, partitions_with_state
from actorproc.produce.producer import Producer
from actorproc.retention.kept_files import KeptFiles
from actorproc.sources import LogSource, OutputSource
from actorproc.storage import names as layout
from actorproc.storage.listing import numbered_files
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import LOG_HINTS, ProcessorLayout, log_dir
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import values
from tests.spark.committing import LAYOUT, Fleet

FOREIGN = [
    "",  # the folder itself, as consoles of S3 make it
    ".DS_Store",
    "._00000000000000000000.parquet",
    ".00000000000000000000.parquet.crc",
    "00000000000000000000 (1).parquet",
    "00000000000000000000.parquet.bak",
    "-0000000000000000001.parquet",
    "0.parquet",
    "_SUCCESS",
    "old/00000000000000000009.parquet",
    "old/00000000000000000009.jsonl",
]
SETTINGS = Settings.load()


async def litter(store: Store, *folders: str) -> None:
    for folder in folders:
        for name in FOREIGN:
            await store.put(folder + name, b"not ours")


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore())


async def send(store: Store, *sent: str) -> list[int]:
    async with Producer(store, partitions=1) as producer:
        return [(await (await producer.send(value))).sequence for value in sent]


async def test_foreign_objects_do_not_disturb_a_log(store: Store) -> None:
    await litter(store, log_dir("0"), LOG_HINTS, layout.LOG_BOUNDARIES)
    assert await send(store, "a") == [0]
    assert await send(store, "b") == [1]
    source = LogSource(store, settings=SETTINGS)
    await source.open()
    assert await source.start("0", "earliest") == "0"
    assert await source.start("0", "latest") == "2"
    assert await values(source, "0") == [b"a", b"b"]
    assert [found.partition for found in (await plan_trim(RetainedLog(store), SETTINGS)).partitions] == ["0"]


async def test_a_head_that_is_none_keeps_no_reader_looking(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    await litter(store, LOG_HINTS)
    await send(store, "a")
    source = LogSource(store, settings=SETTINGS)
    await source.open()
    assert (await source.end("0")).sequence == 0
    assert "log.hint_corrupt" not in caplog.text


async def test_foreign_names_do_not_take_the_place_of_ours_in_a_listing(store: Store) -> None:
    numbers = [0, 4, 2**63]
    for number in numbers:
        await store.put(layout.log_file("0", number), b"")
    for number in range(150):
        await store.put(f"{log_dir('0')}00000000000000000003-{number:03d}.tmp", b"")
    assert await first_base(store, "0", 3) == 4
    assert await last_base(store, "0") == 2**63
    assert await last_base(store, "0", hint=3) == 2**63
    for limit in (None, 1, 2, 3, 9):
        assert [found.number for found in await numbered_files(store, log_dir("0"), limit=limit)] == numbers[:limit]


async def test_foreign_objects_do_not_disturb_a_processor(store: Store) -> None:
    fleet = Fleet(store)
    folders = [LAYOUT.output_dir("0"), LAYOUT.dead_letter_dir("0"), LAYOUT.compacted_dir("0"), LAYOUT.dead_letters]
    await litter(store, LAYOUT.checkpoints, LAYOUT.boundaries, LAYOUT.hosts, *folders)
    assert await missing_processor(store, "numbers") is not None
    await fleet.commit(p0=10)
    await fleet.commit(p0=10)
    assert await partitions_with_state(store, LAYOUT) == ["0"]
    assert [piece.file.number async for piece in all_slices(store, LAYOUT, ["0"])] == [0, 1]
    status = await FleetWatch(store, LAYOUT, 60).read_all()
    assert [(found.partition, found.error) for found in status.partitions.values()] == [("0", None)]
    assert await letter_files(store, LAYOUT) == [LAYOUT.dead_letter_file("0", number) for number in (0, 1)]
    assert [letter["sequence"] async for letter in dead_letters(store, LAYOUT)] == [7, 17]
    source = OutputSource(store, "numbers", settings=SETTINGS)
    await source.open()
    assert await source.partitions() == ["0"]
    assert len(await values(source, "0", "0+0")) == 18  # type: ignore[arg-type]
    assert [found.partition for found in (await plan_trim(RetainedOutput(store, LAYOUT), SETTINGS)).partitions] == ["0"]


async def test_a_sweep_deletes_only_leftovers_of_compactions(store: Store) -> None:
    left = LAYOUT.compacted_file("0", 3, "somebody")
    await store.put(left, b"")
    await litter(store, LAYOUT.compacted_dir("0"))
    assert [entry.key for entry in await sweep(store, LAYOUT, "0", keep=0, kept=KeptFiles())] == [left]
    assert len((await store.list(LAYOUT.compacted_dir("0"))).entries) == len(FOREIGN)


@pytest.mark.parametrize("name", FOREIGN)
def test_an_object_with_a_foreign_name_is_not_ours(name: str) -> None:
    assert layout.number_in("f/", "f/" + name) is None
    assert layout.number_before_id("f/", "f/" + name) is None
    assert layout.partition_in("f/", "f/" + name) is None
    assert not layout.is_log_hint(LOG_HINTS + name)
    assert layout.batch_of_staged(layout.LOG_STAGED + name) is None
    assert layout.batch_of_staged(f"{layout.LOG_STAGED}t/{name}") is None
    assert not ProcessorLayout("p").is_dead_letter_file(f"p/dead-letters/partition=0/{name}")


@pytest.mark.parametrize("partition", ["0", "", "a/b", "é %2F", "._0", ".json"])
@pytest.mark.parametrize("number", [0, 7, 2**64])
def test_objects_with_names_of_our_form_are_ours(partition: str, number: int) -> None:
    keys = ProcessorLayout("p")
    assert layout.number_in(keys.output_dir(partition), keys.output_file(partition, number)) == number
    compacted = keys.compacted_file(partition, number, "a-b")
    assert layout.number_before_id(keys.compacted_dir(partition), compacted) == number
    assert keys.is_dead_letter_file(keys.dead_letter_file(partition, number))
    assert layout.partition_in(keys.checkpoints, keys.checkpoint(partition)) == partition
    assert layout.batch_of_staged(layout.log_staged("job-1", number, "n")) == ("job-1", number)
    assert layout.host_of(keys.host("h", "i")) == ("h", "i")
    assert layout.is_log_hint(layout.log_hint("0a1b"))
