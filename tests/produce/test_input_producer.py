"""Producing JSON lines, text lines and CSV."""

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
from actorproc.log.key_hash import partition_of_key
from actorproc.produce.growth import grow_log
from actorproc.produce.input_formats import BLOCK, BadLine, CsvRows, InputFormat, JsonLines, TextLines
from actorproc.produce.input_producer import InputProducer, OnBadLine, Produced
from actorproc.produce.producer import Producer
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.log import LogSource
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.log.reading import batches, log_contents


async def test_json_lines_go_to_the_partition_of_their_key(tmp_path: Path) -> None:
    lines = [orjson.dumps({"tail": f"N{i % 50}", "text": "é\n" * (i % 30), "i": i}) for i in range(20_000)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert path.stat().st_size > BLOCK / 2
    store = Store(MemoryStore())
    steps: list[Produced] = []
    with path.open("rb") as file:
        async with Producer(store, partitions=4) as producer:
            produced = await InputProducer().run(JsonLines(file, "tail"), producer, steps.append)
    contents = await log_contents(store)
    assert produced == steps[-1]
    assert produced[:4] == (20_000, path.stat().st_size, 0, 0)
    assert produced.partitions == {partition: len(values) for partition, values in contents.items() if values}
    expected: dict[str, list[bytes]] = {"0": [], "1": [], "2": [], "3": []}
    for index, line in enumerate(lines):
        expected[str(partition_of_key(b"N%d" % (index % 50), 4))].append(line)
    assert contents == expected


async def test_records_count_where_they_are_after_the_log_has_grown() -> None:
    """The producer was opened before, and sends to partitions that have ended."""
    store = Store(MemoryStore())
    lines = b"\n".join(orjson.dumps({"k": f"key{n}"}) for n in range(200))
    async with Producer(store, partitions=2) as producer:
        await grow_log(store, 4)
        produced = await InputProducer().run(JsonLines(io.BytesIO(lines), "k"), producer)
    held = {partition: len(values) for partition, values in (await log_contents(store)).items() if values}
    assert produced.partitions == held
    assert held.keys() == {"2", "3", "4", "5"}


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n", b"\n\n  \n"])
async def test_blank_lines_and_line_breaks_are_no_part_of_records(ending: bytes) -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        produced = await InputProducer().run(TextLines(io.BytesIO(b"\n one\r\n\r\ntwo\n \t\nthree" + ending)), producer)
    assert (await log_contents(store))["0"] == [b" one", b"two", b"three"]
    assert (produced.records, produced.unkeyed) == (3, 0)


async def test_an_empty_input_produces_no_records() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        assert await InputProducer().run(TextLines(io.BytesIO(b"")), producer) == (0, 0, 0, 0, 0, {})


async def test_keys_are_text_or_json_and_null_is_none() -> None:
    store = Store(MemoryStore())
    keys = ["text", 5, 2.5, True, {"a": 1}, None]
    lines = b"\n".join(orjson.dumps({"k": key}) for key in keys)
    async with Producer(store, partitions=8) as producer:
        produced = await InputProducer().run(JsonLines(io.BytesIO(lines), "k"), producer)
    assert (produced.records, produced.unkeyed) == (6, 1)
    contents = await log_contents(store)
    for key, line in zip([b"text", b"5", b"2.5", b"true", b'{"a":1}'], lines.split(b"\n"), strict=False):
        assert line in contents[str(partition_of_key(key, 8))]


async def test_a_large_number_in_deeply_nested_json_is_a_key() -> None:
    async with Producer(Store(MemoryStore()), partitions=8) as producer:
        line = b'{"k": 1e30, "x": %s}' % (b"[" * 1010 + b"]" * 1010)
        assert (await InputProducer().run(JsonLines(io.BytesIO(line), "k"), producer)).unkeyed == 0


async def test_whole_numbers_are_keys_to_the_last_digit() -> None:
    store = Store(MemoryStore())
    numbers = [str(10**29 + n).encode() for n in range(20)]
    async with Producer(store, partitions=8) as producer:
        lines = [b'{"k":%s}' % number for number in numbers]
        assert (await InputProducer().run(JsonLines(io.BytesIO(b"\n".join(lines)), "k"), producer)).records == 20
    contents = await log_contents(store)
    for number, line in zip(numbers, lines, strict=False):
        assert line in contents[str(partition_of_key(number, 8))]


BAD = b'{"k":"a"}\n\nnonsense\n[1]\n{"other":1}\n{"k":"b"}\n'


@pytest.mark.parametrize(
    ("way", "counts", "lines"),
    [("skip", (2, 0, 0, 3), [b'{"k":"a"}', b'{"k":"b"}']), ("keep", (5, 3, 3, 0), BAD.split())],
)
async def test_bad_lines_are_skipped_or_kept(way: OnBadLine, counts: tuple[int, ...], lines: list[bytes]) -> None:
    store = Store(MemoryStore())
    input_producer = InputProducer(on_bad_line=way)
    async with Producer(store, partitions=1) as producer:
        produced = await input_producer.run(JsonLines(io.BytesIO(BAD), "k"), producer)
    assert (produced.records, produced.unkeyed, produced.kept, produced.skipped) == counts
    assert (await log_contents(store))["0"] == lines
    assert [line.number for line in input_producer.bad_lines] == [3, 4, 5]


async def test_a_bad_line_ends_the_call() -> None:
    store = Store(MemoryStore())
    with pytest.raises(UsageError, match=r"line 3: not JSON .*: nonsense; the lines before it are in the log"):
        async with Producer(store, partitions=1) as producer:
            await InputProducer(on_bad_line="fail").run(JsonLines(io.BytesIO(BAD), "k"), producer)
    assert (await log_contents(store))["0"] == [b'{"k":"a"}']


async def test_the_line_to_go_on_from_counts_skipped_lines() -> None:
    class RefusesB(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            if key.startswith("partition=1/"):
                raise StoreRefused("no right to write there")
            return await super().put_if_absent(key, body)

    def by_key(key: bytes | None, value: bytes | None, partitions: int) -> int:
        return int(key == b"b")

    input_producer = InputProducer(on_bad_line="skip")
    with pytest.raises(StoreRefused):
        async with Producer(Store(RefusesB()), partitions=2, partitioner=by_key) as producer:
            await input_producer.run(JsonLines(io.BytesIO(BAD), "k"), producer)
    assert input_producer.delivered() == (1, 6, False)


async def test_without_a_key_field_a_line_may_be_anything() -> None:
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await InputProducer(on_bad_line="fail").run(TextLines(io.BytesIO(BAD)), producer)
    assert len((await log_contents(store))["0"]) == 5


async def test_a_line_longer_than_a_block_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl.gz"
    long = b"x" * (3 * BLOCK + 17)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a\n" + long + b"\nb\n")
    store = Store(MemoryStore())
    with gzip.open(path, "rb") as packed:
        async with Producer(store, partitions=1) as producer:
            await InputProducer().run(TextLines(packed), producer)
    assert (await log_contents(store))["0"] == [b"a", long, b"b"]


async def test_a_pipe_is_followed_as_it_comes() -> None:
    reading, writing = os.pipe()
    store = Store(MemoryStore())
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", buffering=0) as pipe:
        async with Producer(store, partitions=1, linger=0) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(InputProducer().run, TextLines(lines), producer)
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
                await InputProducer(rate=50, clock=clock).run(TextLines(io.BytesIO(b"x\n" * 5000)), producer)
            assert clock.monotonic() - began == pytest.approx(100, abs=1)
            assert halfway[0] == pytest.approx(2500, abs=100)

    run(main())


@pytest.mark.parametrize("rate", [0, math.inf, math.nan])
def test_an_invalid_rate_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=f"rate = {rate}: more than 0 records per second, and finite"):
        InputProducer(rate=rate)


class Pieces(io.BytesIO):
    """Gives a few bytes at a time, as a slow pipe does."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(7)


async def produced_from(
    records: InputFormat, input_producer: InputProducer | None = None
) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of each record in the log."""
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await (input_producer or InputProducer()).run(records, producer)
    source = LogSource(store)
    await source.open()
    return [(record.key, record.value) for batch in await batches(source, "0") for record in batch]


CSV = b'\xef\xbb\xbfid,name,note\n1,a,"x, ""y"""\n\n2,,"two\nlines"\r\n3,b,\n'
ROWS = [
    (b"a", {"id": "1", "name": "a", "note": 'x, "y"'}),
    (None, {"id": "2", "name": "", "note": "two\nlines"}),
    (b"b", {"id": "3", "name": "b", "note": ""}),
]


@pytest.mark.parametrize("reader", [io.BytesIO, Pieces])
async def test_csv_rows_become_json_objects_with_the_key_of_a_column(reader: type[io.BytesIO]) -> None:
    found = await produced_from(CsvRows(reader(CSV), "name"))
    assert [(key, orjson.loads(value or b"")) for key, value in found] == ROWS


def test_csv_rows_are_numbered_by_the_lines_in_which_they_begin() -> None:
    records = CsvRows(io.BytesIO(CSV))
    block = records.read()
    assert block is not None
    assert (list(block.numbers), block.next_line) == ([2, 4, 6], 7)
    assert block.size == len(CSV) - len(b"id,name,note\n\xef\xbb\xbf")
    assert block.keys is None
    assert records.read() is None


async def test_large_csv_is_read_in_blocks() -> None:
    rows = b"".join(b'%d,"%s"\n' % (n, b"x\n" * 20) for n in range(40_000))
    records = CsvRows(io.BytesIO(b"n,text\n" + rows), "n")
    blocks = []
    while (block := records.read()) is not None:
        blocks.append(block)
    assert len(blocks) > 1
    assert [key for block in blocks for key in block.keys or ()] == [str(n) for n in range(40_000)]
    assert sum(block.size for block in blocks) == len(rows)


@pytest.mark.parametrize("kind", [CsvRows, JsonLines, TextLines])
async def test_a_byte_order_mark_is_not_part_of_the_first_line(kind: type[InputFormat]) -> None:
    text = b'"a"\r\n"1"\r\n'
    marked = await produced_from(kind(io.BytesIO(b"\xef\xbb\xbf" + text)))
    assert marked == await produced_from(kind(io.BytesIO(text)))


@pytest.mark.parametrize(("treatment", "kept"), [("skip", []), ("keep", [b'2,"a\n99,b\nc",more'])])
async def test_a_row_of_several_lines_with_too_many_fields_is_one_bad_row(
    treatment: OnBadLine, kept: list[bytes]
) -> None:
    text = b'id,note\n1,x\n2,"a\n99,b\nc",more\n3,y\n'
    input_producer = InputProducer(on_bad_line=treatment)
    found = await produced_from(CsvRows(io.BytesIO(text), "id"), input_producer)
    assert [key for key, _ in found if key] == [b"1", b"3"]
    assert [value for key, value in found if not key] == kept
    assert [bad.number for bad in input_producer.bad_lines] == [3]


def test_who_goes_on_after_a_row_of_several_lines_begins_with_the_next_row() -> None:
    async def main() -> None:
        clock = VirtualClock("p")
        input_producer = InputProducer(rate=1, clock=clock)
        lines: list[int] = []
        rows = CsvRows(io.BytesIO(b"id,note\n" + b'1,"a\nb\nc"\n' * 5))
        async with Producer(Store(MemoryStore(clock=clock), clock=clock), partitions=1, clock=clock) as producer:
            await input_producer.run(rows, producer, lambda _: lines.append(input_producer.delivered().next_line))
        assert {2 + 3 * row for row in range(1, 5)} <= {*lines} <= {2 + 3 * row for row in range(6)}

    run(main())


@pytest.mark.parametrize("later", [b"", b'\n7,"quoted"'], ids=["never closed", "closed by a later row"])
async def test_a_quote_that_is_not_closed_costs_only_its_own_row(later: bytes) -> None:
    good = b"".join(b"\n%d,x" % n for n in range(2, 5_000))
    text = b'a,b\n0,x\n1,"oops' + good + later
    input_producer = InputProducer(on_bad_line="skip")
    found = await produced_from(CsvRows(io.BytesIO(text), "a"), input_producer)
    assert len(found) == 1 + 4_998 + (1 if later else 0)
    assert [bad.number for bad in input_producer.bad_lines] == [3]


async def test_bad_csv_rows_are_kept_as_they_are_or_skipped() -> None:
    bad = b'a,b\n1,2\n1,2,3\n"x"y,2\n\xff,2\n3,4\n"open,5\n'
    expected = [b'{"a":"1","b":"2"}', b"1,2,3", b'"x"y,2', b"\xff,2", b'{"a":"3","b":"4"}', b'"open,5']
    kept = await produced_from(CsvRows(io.BytesIO(bad), "a"), InputProducer(on_bad_line="keep"))
    assert [value for _, value in kept] == expected
    input_producer = InputProducer(on_bad_line="skip")
    skipped = await produced_from(CsvRows(io.BytesIO(bad), "a"), input_producer)
    assert [value for _, value in skipped] == [expected[0], expected[4]]
    assert [(error.number, error.why.partition(": ")[0]) for error in input_producer.bad_lines] == [
        (3, "not a row of this CSV (3 fields, and the header has 2)"),
        (4, "not a row of this CSV (',' expected after '\"')"),
        (5, "not a row of this CSV (not UTF-8)"),
        (7, "not a row of this CSV (unexpected end of data)"),
    ]


@pytest.mark.parametrize(
    ("header", "why"), [(b"a,b\n1,2", "has no column 'nam'"), (b"a,a\n1,2", "names a column twice")]
)
def test_a_csv_header_without_the_key_column_is_refused(header: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        CsvRows(io.BytesIO(header), "nam").read()


@pytest.mark.parametrize(
    "text",
    [
        "a,größe\n1,2\n".encode("latin-1"),
        "a,b\n1,2\n".encode("utf-16"),
        "a,b\n1,2\n".encode("utf-16-le"),
        b"\xef\xbb\xbfa,\xff\n1,2\n",
        b'a,"b\n\xff"\n1,2\n',
    ],
)
@pytest.mark.parametrize("on_bad_line", ["fail", "keep", "skip"])
async def test_a_csv_header_that_is_not_utf8_is_the_fault_of_the_input(text: bytes, on_bad_line: OnBadLine) -> None:
    input_producer = InputProducer(on_bad_line=on_bad_line)
    with pytest.raises(UsageError, match=r"the CSV header is not UTF-8, at .*convert the input"):
        await produced_from(CsvRows(io.BytesIO(text), "a"), input_producer)
    assert not input_producer.bad_lines


@pytest.mark.parametrize("from_line", range(1, 9))
async def test_input_goes_on_from_a_line_with_the_header_of_csv(from_line: int) -> None:
    """Also a bad line before it is passed over."""
    text = b'id,note\n1,"a\nb"\n2,x,bad\n\n3,y\n'
    input_producer = InputProducer(from_line=from_line, on_bad_line="skip")
    found = await produced_from(CsvRows(io.BytesIO(text), "id"), input_producer)
    assert [key for key, _ in found] == [key for key, line in ((b"1", 2), (b"3", 6)) if line >= from_line]
    assert [bad.number for bad in input_producer.bad_lines] == ([4] if from_line <= 4 else [])
    assert input_producer.delivered() == (len(found), max(7, from_line), True)


@pytest.mark.parametrize("text", [b"", b"\n\n", b"a,b\n", b"a,b"])
def test_csv_without_rows_gives_no_records(text: bytes) -> None:
    assert CsvRows(io.BytesIO(text), "a").read() is None


async def times_from(records: InputFormat, on_bad_line: OnBadLine = "fail") -> list[tuple[bytes | None, str]]:
    """Key and time of each record in the log. Each time is written as in ISO 8601, without its zone, which is UTC."""
    store = Store(MemoryStore())
    async with Producer(store, partitions=1) as producer:
        await InputProducer(on_bad_line=on_bad_line).run(records, producer)
    source = LogSource(store)
    await source.open()
    records_read = [record for batch in await batches(source, "0") for record in batch]
    times = [record.timestamp.isoformat() if record.timestamp else "" for record in records_read]
    return [(record.key, time.removesuffix("+00:00")) for record, time in zip(records_read, times, strict=True)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00"),
        ("2013-01-01 05:00:00.25-05:00", "2013-01-01T10:00:00.250000"),
        ("2013-01-01 10:00:00", "2013-01-01T10:00:00"),
        ("2013-01-01", "2013-01-01T00:00:00"),
        (1357034400, "2013-01-01T10:00:00"),
        (1357034400.25, "2013-01-01T10:00:00.250000"),
        (1357034400250, "2013-01-01T10:00:00.250000"),
        (1357034400250001, "2013-01-01T10:00:00.250001"),
        (1357034400250001999, "2013-01-01T10:00:00.250002"),
        (-1, "1969-12-31T23:59:59"),
    ],
)
async def test_a_time_is_iso_text_or_a_number_since_1970(given: str | float, expected: str) -> None:
    assert await times_from(JsonLines(io.BytesIO(orjson.dumps({"t": given})), None, "t")) == [(None, expected)]
    assert await times_from(CsvRows(io.BytesIO(f"t,x\n{given},1\n".encode()), "x", "t")) == [(b"1", expected)]


WRONG_TIMES = ["soon", "", "1" * 5000, "nan", "0001-01-01T00:00+01:00", 1e300, None, True, [1]]


@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=lambda wrong: str(wrong)[:10])
async def test_a_line_whose_time_is_none_is_bad(wrong: object) -> None:
    with pytest.raises(BadLine, match="line 1: field 't' is no time: "):
        await times_from(JsonLines(io.BytesIO(orjson.dumps({"t": wrong})), None, "t"))
    if isinstance(wrong, str | float):
        with pytest.raises(BadLine, match="line 2: field 't' is no time: "):
            await times_from(CsvRows(io.BytesIO(f"t,x\n{wrong},1\n".encode()), None, "t"))


async def test_a_line_that_lacks_its_time_is_bad() -> None:
    with pytest.raises(BadLine, match=r"line 1: no field 't' in .*there are: k"):
        await times_from(JsonLines(io.BytesIO(b'{"k": 1}'), "k", "t"))
    with pytest.raises(UsageError, match="has no column 'tim'; did you mean time"):
        CsvRows(io.BytesIO(b"time,x\n"), None, "tim").read()


async def test_a_bad_line_that_is_kept_has_the_time_of_its_neighbour() -> None:
    lines = b'none\n{"k":"a","t":1}\n{"k":"b","t":"?"}\n{"t":2}\n{"k":"c","t":60}\n'
    first, second, last = "1970-01-01T00:00:01", "1970-01-01T00:00:02", "1970-01-01T00:01:00"
    expected = [(None, first), (b"a", first), (None, first), (None, first), (b"c", last)]
    assert await times_from(JsonLines(io.BytesIO(lines), "k", "t"), "keep") == expected
    rows = b'k,t\n"a",2\nb\n"c\nd",soon\ne,60\n'
    expected = [(b"a", second), (None, second), (None, second), (b"e", last)]
    assert await times_from(CsvRows(io.BytesIO(rows), "k", "t"), "keep") == expected


@pytest.mark.parametrize("pieces", [1, 3])
async def test_times_go_on_from_block_to_block(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.produce.input_formats.BLOCK", 40 // pieces)
    lines = b"".join(orjson.dumps({"t": n}) + b"\n" for n in range(100, 200)) + b"none\n"
    times = [time for _, time in await times_from(JsonLines(io.BytesIO(lines), None, "t"), "keep")]
    assert times[0] == "1970-01-01T00:01:40"
    assert times[-2:] == ["1970-01-01T00:03:19"] * 2
    assert times == sorted(times)
