"""`check_source` passes correct sources and reports its checks."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from shutil import copy
from typing import Any

import pyarrow as pa
import pytest

from actorproc import Batch, Chunk, End, Producer
from actorproc.errors import UsageError
from actorproc.records import RECORD_SCHEMA
from actorproc.simulation import UnsteadySource, run
from actorproc.sources import LogSource, OutputSource, Start
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import CheckedSource, InvalidSource, MemorySource, check_source
from tests.spark.committing import Fleet
from tests.testing.sources import NOON, Pages, checked, filled


async def test_a_correct_source_passes_with_a_report() -> None:
    report = await checked(filled(MemorySource(3, page=2, step=5)))
    assert report == CheckedSource({"0": 7, "1": 8, "2": 0}, report.positions, [])
    assert report.positions["1"] == ["0", "3", "7", "2", "4", "6", "8"]


@pytest.mark.parametrize("make", [lambda: UnsteadySource(3, page=4), lambda: MemorySource(3, page=1), lambda: Pages(3)])
async def test_positions_may_be_coarse(make: Callable[[], MemorySource]) -> None:
    await checked(filled(make()))


async def test_a_source_may_lack_the_optional_features() -> None:
    class Plain(MemorySource):
        async def start(self, partition: str, at: Start) -> str:
            if at != "earliest":
                raise UsageError("earliest only")
            return "0"

        async def end(self, partition: str) -> End:
            return End((await super().end(partition)).position, None)

        def sequence_before(self, partition: str, position: str) -> int | None:
            return None

    report = await checked(filled(Plain(3)))
    assert report.not_checked.count("start('latest'), which is refused: earliest only") == 1


async def test_the_end_is_checked_when_all_records_were_read() -> None:
    class Wrong(MemorySource):
        async def end(self, partition: str) -> End:
            return End("0", 5)

    source = Wrong(1)
    source.append("0", [b"1"] * 8)
    with pytest.raises(InvalidSource):
        await check_source(source, most_records=8)


async def test_an_end_beyond_the_last_record_is_reported() -> None:
    class Beyond(MemorySource):
        async def end(self, partition: str) -> End:
            end = await super().end(partition)
            return End(end.position, end.sequence and end.sequence + 1)

    source = Beyond(1)
    source.append("0", [b"a", b"b"])
    report = await check_source(lambda: source)
    assert "whether end() of partition 0 is right: it gave sequence 2, the last record has 1" in report.not_checked


async def test_a_source_may_lack_its_first_and_newest_records() -> None:
    class Filtered(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    kept = [index for index, record in enumerate(chunk.batch) if record.value not in (b"0", b"6")]
                    yield Chunk(chunk.batch.take(kept), chunk.next)

    await checked(filled(Filtered(3)))


async def test_pages_may_have_other_column_types_and_nulls() -> None:
    large = pa.schema(
        [field.with_type(pa.large_binary()) if field.name == "value" else field for field in RECORD_SCHEMA]
    )

    class Large(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    yield Chunk(Batch(partition, chunk.batch.data.cast(large), chunk.batch.sequence_array), chunk.next)

    source = Large(2)
    source.append("0", [b"a", None, b"b"], timestamp=None)
    await checked(source)


async def test_a_long_partition_is_checked_at_its_beginning_and_end() -> None:
    report = await checked(filled(MemorySource(3, page=3), 100), most_records=60)
    assert report.records == {"0": 63, "1": 63, "2": 0}
    assert report.not_checked == [f"where partition {name} ends: it has more than 60 records" for name in "01"]
    assert (len(report.positions["0"]), report.positions["0"][:4]) == (22, ["0", "31", "3", "6"])


async def test_an_endless_partition_is_checked_up_to_a_limit() -> None:
    class Endless(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            at = int(position)
            while True:
                if at == 1000:
                    yield Chunk(Batch.of(partition, [], []), str(at))
                yield Chunk(Batch.of(partition, [b"%d" % at], [at]), str(at := at + 1))

        async def end(self, partition: str) -> End:
            return End("1000", 999)

    report = await check_source(Endless(1), most_records=50)
    assert report.records == {"0": 51}


async def test_rules_that_cannot_be_checked_are_reported() -> None:
    report = await check_source(filled(MemorySource(3)))
    assert [why.partition(": give")[0] for why in report.not_checked] == [
        "whether a record that arrives is seen",
        "whether its positions are good in a new instance",
    ]


async def test_a_stream_without_records_proves_nothing() -> None:
    with pytest.raises(UsageError, match="no records, which proves nothing"):
        await check_source(MemorySource(2))
    with pytest.raises(UsageError, match="a source, or a function"):
        await check_source("events")  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["folder", "memory"])
async def test_the_built_in_log_passes(tmp_path: Path, place: str) -> None:
    log: Any = tmp_path / "log" if place == "folder" else Store(MemoryStore())

    async def add(count: int = 1) -> None:
        async with Producer(log, partitions=3, partitioner="round-robin", linger=0) as producer:
            for number in range(count):
                await producer.send(
                    b"%d" % number, key=b"k", headers={"a": "b"}, timestamp=NOON + timedelta(seconds=number)
                )
                await producer.flush()

    await add(20)
    report = await check_source(lambda: LogSource(log), add=add)
    assert (sum(report.records.values()), report.not_checked) == (21, [])


async def test_another_processors_output_passes() -> None:
    store = Store(MemoryStore())
    fleet = Fleet(store)
    for _ in range(3):
        await fleet.commit(p0=30, p1=12)
    report = await check_source(lambda: OutputSource(store, "numbers"), add=lambda: fleet.commit(p1=1))
    assert report.not_checked == []


def test_check_source_runs_in_virtual_time() -> None:
    async def main() -> None:
        await checked(filled(UnsteadySource(3, page=4)))

    run(main())


async def test_the_example_of_the_page_on_sources_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    copy(root / "examples" / "sql_source.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = (root / "docs" / "sources.md").read_text().partition("\n## Testing a source\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    said: dict[str, Any] = {}
    exec(code, said)
    await said["test_the_table_is_a_source"](tmp_path)
    sys.modules.pop("sql_source")
