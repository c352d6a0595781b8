"""Lines into a log, as `actorproc produce` sends them."""

from __future__ import annotations

import gzip
import io
import math
import os
from pathlib import Path

import anyio
import orjson
import pytest

from actorproc.errors import StoreRefused, UsageError
from actorproc.log.line_producer import BLOCK, BadLine, Produced, first_checked, produce_lines
from actorproc.log.partitioner import partition_of_key
from actorproc.log.producer import Producer
from actorproc.log.resume_point import Account
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.simulation.clock import VirtualClock
from actorproc.testing.simulation.loop import run
from tests.log.reading import log_contents


async def test_each_line_is_a_record_as_it_is_in_the_partition_of_its_key(tmp_path: Path) -> None:
    lines = [orjson.dumps({"tail": f"N{i % 50}", "text": "é\n" * (i % 30), "i": i}) for i in range(20_000)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert path.stat().st_size > BLOCK / 2
    store = Store(MemoryStore())
    steps: list[Produced] = []
    with path.open("rb") as file:
        async with Producer(store, partitions=4) as producer:
            produced = await produce_lines(producer, file, key="tail", progress=steps.append)
    contents = await log_contents(store)
    assert produced == steps[-1]
    assert produced[:4] == (20_000, sum(map(len, lines)), 0, 0)
    assert produced.partitions == {partition: len(values) for partition, values in contents.items() if values}
    expected: dict[str, list[bytes]] = {"0": [], "1": [], "2": [], "3": []}
    for index, line in enumerate(lines):
        expected[str(partition_of_key(b"N%d" % (index % 50), 4))].append(line)
    assert contents == expected


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n  \n"])
async def test_blank_lines_and_line_breaks_are_no_part_of_records(ending: bytes) -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        produced = await produce_lines(producer, io.BytesIO(b"\n one\r\n\r\ntwo\n \t\nthree" + ending))
    assert (await log_contents(store))["0"] == [b" one", b"two", b"three"]
    assert produced[:3] == (3, 12, 0)


async def test_nothing_gives_nothing() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        assert await produce_lines(producer, io.BytesIO(b"")) == (0, 0, 0, 0, 0, {})


async def test_keys_are_text_or_json_and_null_is_none() -> None:
    store = Store(MemoryStore())
    keys = ["text", 5, 2.5, True, {"a": 1}, None]
    lines = b"\n".join(orjson.dumps({"k": key}) for key in keys)
    async with Producer(store, partitions=8) as producer:
        produced = await produce_lines(producer, io.BytesIO(lines), key="k")
    assert (produced.records, produced.unkeyed) == (6, 1)
    contents = await log_contents(store)
    for key, line in zip([b"text", b"5", b"2.5", b"true", b'{"a":1}'], lines.split(b"\n"), strict=False):
        assert line in contents[str(partition_of_key(key, 8))]


async def test_a_number_beside_what_is_deeper_than_python_reads_is_a_key() -> None:
    async with Producer(Store(MemoryStore()), partitions=8) as producer:
        line = b'{"k": 1e30, "x": %s}' % (b"[" * 1010 + b"]" * 1010)
        assert (await produce_lines(producer, io.BytesIO(line), key="k")).unkeyed == 0


async def test_whole_numbers_are_keys_to_the_last_digit() -> None:
    store = Store(MemoryStore())
    numbers = [str(10**29 + n).encode() for n in range(20)]
    async with Producer(store, partitions=8) as producer:
        lines = [b'{"k":%s}' % number for number in numbers]
        assert (await produce_lines(producer, io.BytesIO(b"\n".join(lines)), key="k")).records == 20
    contents = await log_contents(store)
    for number, line in zip(numbers, lines, strict=False):
        assert line in contents[str(partition_of_key(number, 8))]


BAD = b'{"k":"a"}\n\nnot json\n[1]\n{"other":1}\n{"k":"b"}\n'


async def test_a_bad_line_is_skipped_or_kept_and_told_or_ends_it_with_its_number() -> None:
    store = Store(MemoryStore())
    told: list[BadLine] = []
    async with Producer(store, partitions=1) as producer:
        produced = await produce_lines(producer, io.BytesIO(BAD), key="k", on_bad_line="skip", tell=told.append)
    assert produced[:5] == (2, produced.bytes, 0, 0, 3)
    assert (await log_contents(store))["0"] == [b'{"k":"a"}', b'{"k":"b"}']
    assert [line.number for line in told] == [3, 4, 5]
    store = Store(MemoryStore())
    told.clear()
    async with Producer(store, partitions=1) as producer:
        produced = await produce_lines(producer, io.BytesIO(BAD), key="k", on_bad_line="keep", tell=told.append)
    assert produced[:5] == (5, produced.bytes, 3, 3, 0)
    assert (await log_contents(store))["0"] == [line for line in BAD.splitlines() if line]
    assert [line.number for line in told] == [3, 4, 5]
    store = Store(MemoryStore())
    with pytest.raises(UsageError, match=r"line 3: no JSON .*: not json; the lines before it are in the log"):
        async with Producer(store, partitions=1) as producer:
            await produce_lines(producer, io.BytesIO(BAD), key="k", on_bad_line="fail")
    assert (await log_contents(store))["0"] == [b'{"k":"a"}']


async def test_lines_that_were_skipped_are_counted_where_it_says_from_which_to_go_on() -> None:
    class RefusesB(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.startswith("partition=1/"):
                raise StoreRefused("no right to write there")
            return await super().put_if_absent(key, body)

    def by_key(key: bytes | None, value: bytes | None, partitions: int) -> int:
        return int(key == b"b")

    account = Account()
    with pytest.raises(StoreRefused):
        async with Producer(Store(RefusesB()), partitions=2, partitioner=by_key) as producer:
            await produce_lines(producer, io.BytesIO(BAD), key="k", on_bad_line="skip", account=account)
    assert account.appended() == (1, 0, 6, 0), "what was refused is in no doubt"


async def test_without_a_key_field_a_line_may_be_anything() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await produce_lines(producer, io.BytesIO(BAD), on_bad_line="fail")
    assert len((await log_contents(store))["0"]) == 5


async def test_a_line_longer_than_a_block_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl.gz"
    long = b"x" * (3 * BLOCK + 17)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a\n" + long + b"\nb\n")
    store = Store(MemoryStore())
    with gzip.open(path, "rb") as packed:
        async with Producer(store, partitions=1) as producer:
            await produce_lines(producer, packed)
    assert (await log_contents(store))["0"] == [b"a", long, b"b"]


async def test_a_pipe_is_followed_as_it_comes() -> None:
    reading, writing = os.pipe()
    store = Store(MemoryStore())
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", buffering=0) as pipe:
        async with Producer(store, partitions=1, linger=0) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(produce_lines, producer, lines)
            for number in range(3):
                pipe.write(b"%d\nhalf" % number)
                with anyio.fail_after(60):
                    while producer.statistics().records <= number:
                        await anyio.lowlevel.checkpoint()
                pipe.write(b" a line\n")
                with anyio.fail_after(60):
                    while producer.statistics().records <= number:
                        await anyio.lowlevel.checkpoint()
            pipe.close()
    found = (await log_contents(store))["0"]
    assert found == [b"0", b"half a line", b"1", b"half a line", b"2", b"half a line"]


def test_a_rate_is_kept() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        store = Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(store, partitions=2, clock=clock) as producer:
            began = clock.monotonic()
            halfway: list[float] = []

            async def watch() -> None:
                await clock.sleep(50)
                halfway.append(producer.statistics().records)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await produce_lines(producer, io.BytesIO(b"x\n" * 5000), rate=50, clock=clock)
            assert clock.monotonic() - began == pytest.approx(100, abs=1)
            assert halfway[0] == pytest.approx(2500, abs=100)

    run(main())


@pytest.mark.parametrize("rate", [0, math.inf, math.nan])
async def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    async with Producer(Store(MemoryStore()), partitions=1) as producer:
        with pytest.raises(UsageError, match=f"rate = {rate}: more than 0 records per second, and finite"):
            await produce_lines(producer, io.BytesIO(b"x\n"), rate=rate)


async def test_a_long_first_line_that_comes_in_small_pieces_is_looked_at_as_a_whole() -> None:
    class Pieces(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(16)

    with pytest.raises(BadLine, match="no field 'k'"):
        await first_checked(Pieces(b'{"other": "' + b"x" * 20_000 + b'"}\n'), "k")
