"""Values of a few bytes that unpack to millions of rows: each is refused before it is unpacked."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from actorproc.codecs import open_decoder
from actorproc.codecs.arrow import ArrowDecoder
from actorproc.codecs.arrow_stream import extent, repeated_bytes
from actorproc.codecs.limits import Limits
from actorproc.config.settings import Settings
from actorproc.formats.protobuf.decoder import ProtobufDecoder, ProtobufFile
from actorproc.formats.protobuf.size import MessageSize
from actorproc.handler.decoder import Values, columns_of, values_of
from tests.formats.samples import FIRST, FORMATS, arrow_stream, arrow_value, handlers, process
from tests.partition.running import letters

LONG = "x" * 10_000
MANY = 100_000


def shared(count: int, text: str = LONG) -> dict[str, pa.Array]:
    """Columns in which `count` cells are the same long text, stored once."""
    zeros, ends = pa.array(np.zeros(count, np.int8)), pa.array([count], pa.int64())
    texts = pa.DictionaryArray.from_arrays(zeros, [text])
    views = pa.Array.from_buffers(
        pa.list_view(pa.string()),
        count,
        [None, pa.py_buffer(np.zeros(count, np.int32)), pa.py_buffer(np.ones(count, np.int32))],
        children=[pa.array([text])],
    )
    offsets = pa.array(np.zeros(count, np.int32))
    _, view, content = pa.array([text], pa.string_view()).buffers()
    return {
        "dictionary": texts,
        "dictionary of lists": pa.DictionaryArray.from_arrays(zeros, pa.array([[text]])),
        "in a list": pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts),
        "in a struct": pa.StructArray.from_arrays([texts], ["name"]),
        "in a map": pa.MapArray.from_arrays([0, count], pa.array(map(str, range(count))), texts),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, pa.array([text])),
        "views of lists": views,
        "views of text": pa.Array.from_buffers(
            pa.string_view(), count, [None, pa.py_buffer(view.to_pybytes() * count), content]
        ),
        "dense union": pa.UnionArray.from_dense(zeros, offsets, [pa.array([text])]),
        "sparse union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([text])]),
    }


def bombs() -> dict[str, bytes]:
    zeros = pa.array(np.zeros(20_000_000, np.int64))
    packed: dict[str, Any] = {"compression": "zstd"}
    found = {
        "zeros, zstd": arrow_stream(pa.table({"n": zeros}), **packed),
        "zeros, lz4": arrow_stream(pa.table({"n": zeros[:10_000_000]}), compression="lz4"),
        "nulls": arrow_stream(pa.table({"n": pa.nulls(20_000_000)})),
        "empty structs": arrow_stream(pa.table({"n": pa.array([{}]).take(pa.array(np.zeros(2_000_000, np.int8)))})),
        "nulls in a list": arrow_stream(
            pa.table({"n": pa.ListArray.from_arrays(pa.array([0, 2**30], pa.int32()), pa.nulls(2**30))})
        ),
        "columns of nulls": arrow_stream(pa.table([pa.nulls(900_000)] * 100, names=[str(at) for at in range(100)])),
    }
    many = {name: arrow_stream(pa.table({"n": column}), **packed) for name, column in shared(MANY).items()}
    del many["sparse union"]  # its children are as long as it is
    return {**found, **many}


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("way", ["columns", "one by one"])
async def test_a_bomb_is_a_dead_letter_alone(name: str, way: str) -> None:
    assert len(BOMBS[name]) < 3_000_000
    before = pa.total_allocated_bytes()
    outcome = await process(handlers()[way], ArrowDecoder(), [arrow_value(1), BOMBS[name], arrow_value(2)])
    [(sequence, letter)] = letters(outcome).items()
    assert (sequence, letter["error"]["type"]) == (FIRST + 1, "DecodeError")
    assert "max_value_" in letter["error"]["message"]
    assert sum(table.num_rows for table in outcome.tables) == 2
    assert pa.total_allocated_bytes() - before < 64 * 2**20


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_unpacked_size_of_a_stream_is_computed_from_its_metadata(compression: str | None) -> None:
    table = pa.table({"n": np.arange(5000), "text": ["text"] * 5000, "flag": [True, None] * 2500})
    found = extent(arrow_stream(table, compression=compression))
    assert found.rows == 5000
    assert table.nbytes <= max(found.bytes, 3 * 8 * 5000) == found.bytes <= 2 * table.nbytes
    several = arrow_stream(pa.concat_tables([table] * 3), compression=compression)
    assert extent(several).rows == 15_000


@pytest.mark.parametrize("name", shared(1))
def test_shared_values_count_as_often_as_they_are_used(name: str) -> None:
    column = shared(1 if name == "sparse union" else 3, "x" * 1000)[name]
    assert len(column) * 1000 <= repeated_bytes(column) < 8_000 or len(column) == 1 <= repeated_bytes(column)
    assert repeated_bytes(pa.chunked_array([column])) == repeated_bytes(column)


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_sizes_that_cannot_be_true_are_refused(compression: str | None) -> None:
    """A stream that says that it unpacks to less, or to more, is not unpacked beyond the limit."""
    good = bytearray(arrow_stream(pa.table({"n": np.zeros(200_000, np.int64)}), compression=compression))
    values = values_of(ArrowDecoder(Limits(rows=10**6, bytes=2 * 10**6)), Any)
    real = (200_000 * 8).to_bytes(8, "little")
    places = [at for at in range(len(good)) if good[at : at + 8] == real]
    assert places
    for at in places:
        for said in (0, 1, 7, 1_000_000, 10**7, 2**31, 2**62, 2**63, 2**64 - 1, 2**64 - 2):
            changed = bytes(good[:at]) + said.to_bytes(8, "little") + bytes(good[at + 8 :])
            try:
                rows = values.parse(changed)
            except ValueError:
                continue
            assert len(rows) <= 200_000


def test_the_limits_are_settings() -> None:
    values = open_decoder(Settings(decode="arrow", max_value_rows=3, max_value_bytes=1000)).values()
    assert [len(values.parse(arrow_value(*range(size)))) for size in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="the value has 4 rows, and max_value_rows is 3"):
        values.parse(arrow_value(1, 2, 3, 4))
    with pytest.raises(ValueError, match=r"unpacks to 1,\d+ bytes, and max_value_bytes is 1,000"):
        values.parse(arrow_stream(pa.table({"name": ["x" * 1200]})))


KINDS = descriptor_pb2.FieldDescriptorProto


def proto(**messages: list[tuple[str, str, bool]]) -> Any:
    """A file with these messages: of each field its name, its type (a message, an enum or int64), and if it repeats."""
    file = descriptor_pb2.FileDescriptorProto(name="bomb.proto", syntax="proto3")
    file.enum_type.add(name="Enum").value.add(name="E" * 5000, number=0)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeats) in enumerate(fields, 1):
            label = KINDS.LABEL_REPEATED if repeats else KINDS.LABEL_OPTIONAL
            if kind in ("int64", "double", "float"):
                plain = KINDS.Type.Value(f"TYPE_{kind.upper()}")
                message.field.add(name=field, number=number, type=plain, label=label)
            else:
                of = KINDS.TYPE_ENUM if kind == "Enum" else KINDS.TYPE_MESSAGE
                message.field.add(name=field, number=number, type=of, type_name=f".{kind}", label=label)
    pool = DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName("bomb.proto")


def message(file: Any, name: str = "M0") -> Any:
    return file.message_types_by_name[name]


DOUBLING = {f"M{n}": [("a", f"M{n + 1}", False), ("b", f"M{n + 1}", False)] for n in range(30)}
WIDE = proto(
    M0=[("wide", "Wide", True), ("enums", "Enum", True), ("deep", "M1", False), ("m0", "M0", True)],
    M1=[("m2", "M2", True)],
    M2=[("wide", "Wide", False)],
    Numbers=[("ints", "int64", True), ("doubles", "double", True), ("floats", "float", True)],
    Wide=[(f"n{n}", "int64", False) for n in range(300)],
)
PROTOBUF_BOMBS = {
    "rows": b"\x0a\x00" * 100_000,
    "enums": b"\x12\xa0\x8d\x06" + b"\x00" * 100_000,
    "single enums": b"\x10\x00" * 100_000,
    "behind a group": b"\x7b\x0a\x00\x7c" + b"\x0a\x00" * 100_000,
    "behind the end of a group": b"\x7c" + b"\x0a\x00" * 100_000,
    "deep": b"\x1a\xc0\x9a\x0c" + b"\x0a\x00" * 100_000,
}


@pytest.mark.parametrize("name", PROTOBUF_BOMBS)
async def test_empty_messages_are_counted_before_they_become_rows(name: str) -> None:
    decoder = ProtobufDecoder(message(WIDE))
    outcome = await process(handlers("wide array<struct<n0: bigint>>")["columns"], decoder, [b"", PROTOBUF_BOMBS[name]])
    assert "max_value_bytes" in letters(outcome)[FIRST + 1]["error"]["message"]


def test_a_large_message_of_few_rows_is_decoded() -> None:
    one = b"\x0a\x03\x08\x80\x01"  # wide { n0: 128 }
    unknown = b"\x7a\x80\x80\x80\x06" + b"\x00" * (12 * 2**20)
    kept = b"\x22\x85\x80\x80\x06" + unknown  # m0 stays bytes: it contains itself
    table = ProtobufDecoder(message(WIDE)).table(pa.array([one * 3 + kept], pa.binary()))
    assert [row["n0"] for row in table["wide"][0].as_py()] == [128] * 3


def test_packed_numbers_count_as_many_as_they_are() -> None:
    wide = WIDE.message_types_by_name["Numbers"]
    size = MessageSize(wide, Limits(bytes=1000))
    for number, elements in ((1, b"\x80\x80\x01" * 100), (2, bytes(800)), (3, bytes(400))):
        one = bytes([number << 3 | 2, len(elements) & 0x7F | 0x80, len(elements) >> 7]) + elements
        assert size._row.unpacked(memoryview(one), 10**6) == 800
        size.check(pa.array([one[:1] + b"\x00"]))
        with pytest.raises(ValueError, match="max_value_bytes is 1,000"):
            size.check(pa.array([one * 2]))


def test_a_schema_with_a_billion_columns_is_refused_before_they_are_made() -> None:
    file = proto(**DOUBLING, M30=[("n", "int64", False)])
    with pytest.raises(ValueError, match="more than 10,000"):
        ProtobufDecoder(message(file))
    assert ProtobufDecoder(message(file, "M28")).schema.names == ["a", "b"]
    decoder = ProtobufFile(file)
    for _ in range(2):
        with pytest.raises(ValueError, match="more than 10,000"):
            decoder.values().parse(b"\x00")


def test_messages_that_contain_themselves_have_few_columns() -> None:
    names = [f"M{n}" for n in range(5)]
    file = proto(**{name: [(other.lower(), other, False) for other in names] for name in names})
    size = MessageSize(message(file), Limits())
    schema = ProtobufDecoder(message(file)).schema
    assert size._columns == sum(map(fields, schema))


def fields(field: pa.Field) -> int:
    kind = field.type
    return 1 + sum(fields(kind.field(at)) for at in range(kind.num_fields))


@pytest.mark.parametrize("part", [b"{}", b"[]", b"1.5", b"1e5", b'{"a":{}}', b'"ab"', b"null", b"99999"])
@pytest.mark.parametrize("name", ["json", "json-schema"])
def test_json_takes_at_most_sixty_times_its_size(name: str, part: bytes) -> None:
    value = b'{"name": "x", "n": [' + b",".join([part] * 50_000) + b"]}"
    decoder = FORMATS[name].decoder
    given, numbers = pa.array([value], pa.binary()), pa.array([1])
    columns = columns_of(decoder, "name string, n array<double>")
    columns.parse(given, numbers)
    for decode in (lambda: columns.parse(given, numbers), lambda: _ignored(values_of(decoder, Any), value)):
        tracemalloc.start()
        decode()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 60 * len(value)


def _ignored(values: Values[Any], value: bytes) -> None:
    with suppress(ValueError):
        values.parse(value)
