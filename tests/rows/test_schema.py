"""Output schemas: Spark's DDL, pyarrow schemas as Spark reads them, and which changes may follow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.errors import SchemaError
from actorproc.output.schema_document import agree_on_schema, read_schema
from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.output_schema import check_change, output_schema, parse_schema
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

UTC = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("bigint", pa.int64()),
        ("LONG", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("Double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric ( 38 , 38 )", pa.decimal128(38, 38)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", UTC),
        ("timestamp_ltz", UTC),
        ("timestamp with local time zone", UTC),
        ("timestamp_ntz", NTZ),
        ("TIMESTAMP WITHOUT TIME ZONE", NTZ),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string, bigint>", pa.map_(pa.string(), pa.int64())),
        ("struct<a: int, b string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        (
            "array<map<int,struct<x:array<date>>>>",
            pa.list_(pa.map_(pa.int32(), pa.struct([("x", pa.list_(pa.date32()))]))),
        ),
    ],
)
def test_each_type_of_spark_becomes_the_arrow_type_that_spark_reads(ddl: str, kind: pa.DataType) -> None:
    assert parse_schema(f"c {ddl}") == pa.schema([("c", kind)])


def test_columns_have_names_nullability_and_comments() -> None:
    schema = parse_schema("""
        carrier: string NOT NULL COMMENT 'two ''letters''',   -- a comment of SQL
        `dep delay``s` double comment "in \\"minutes\\"\\n", /* another */
        date date, s struct<a int not null, b: string COMMENT 'x'> NOT NULL
    """)
    assert schema.names == ["carrier", "dep delay`s", "date", "s"]
    assert [field.nullable for field in schema] == [False, True, True, False]
    assert schema.field(0).metadata == {b"comment": b"two 'letters'"}
    assert schema.field(1).metadata == {b"comment": b'in "minutes"\n'}
    assert not schema.field("s").type.field("a").nullable


def test_a_schema_as_spark_prints_it_is_read() -> None:
    assert parse_schema("struct<a:int,b:array<string>>") == parse_schema("a int, b array<string>")


@pytest.mark.parametrize("declared", [None, "", "  -- nothing\n"])
def test_no_columns_can_be_declared(declared: str | None) -> None:
    assert parse_schema(declared) == pa.schema([])


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a strin", r"position 3: there is no type 'strin'; allowed: boolean, tinyint"),
        (
            "\n  a int, -- one\n  lines it,\n",
            r"^output schema, line 3, 'lines it,', position 7: there is no type 'it'; allowed",
        ),
        ("a int,\n  b\n\n", r"^output schema, line 2, 'b', position 2: the schema ends where a type"),
        ("a int b int", r"position 7: found 'b' where ',' or the end"),
        ("a int,", r"position 7: the schema ends where the name of a column"),
        ("a", r"position 2: the schema ends where a type: boolean"),
        ("a array<int", r"position 12: the schema ends where '>'"),
        ("a map<int>", r"position 10: found '>' where ','"),
        ("a array<int not null>", r"position 13: found 'not' where '>'"),
        ("a-b int", r"position 2: '-' is not allowed here; other names go in `backquotes`"),
        ("é int", r"position 1: 'é' is not allowed here"),
        ("1 int", r"position 1: found '1' where the name"),
        ("1e5 int", r"position 1: found '1e5' where the name"),
        ("a int not", r"position 10: the schema ends where NULL"),
        ("a int comment x", r"position 15: found 'x' where a 'quoted text'"),
        ("a int default 3", r"position 7: found 'default' where ','"),
        ("a 'int'", r"""position 3: found "'int'" where a type"""),
        ("a string(5)", r"position 9: found '\(' where ','"),
        ("a decimal(39,2)", r"position 3: decimal\(39,2\): 1 to 38 digits"),
        ("a decimal(5,7)", r"decimal\(5,7\)"),
        ("a decimal(x)", r"position 11: found 'x' where a number"),
        ("a varchar(3)", r"there is no type 'varchar'; allowed: boolean"),
        ("a struct<>", r"position 10: a struct needs a field"),
        ("struct<a: int> b", r"position 16: found 'b' where the end"),
        ("a int, A string", r"columns 'a' and 'A': names must differ in more than case"),
        ("a int, b int, a int", r"columns 'a' and 'a': names must differ"),
        ("tail string, tail string", r"columns 'tail' and 'tail': names must differ"),
        ("s struct<x: int, X: int>", r"columns 's.x' and 's.X'"),
        ("m map<string, array<struct<x: int, x: int>>>", r"columns 'm.x' and 'm.x'"),
        ("`` int", r"has no name"),
        ("_sequence bigint", r"'_sequence': names that start with _sequence or _partition are reserved"),
        ("_Partition_id int", r"'_Partition_id': names that start"),
        ("Partition string", r"'Partition': readers get 'partition'"),
    ],
)
def test_a_syntax_error_is_named_with_its_position(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(ddl)


def test_something_else_than_a_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"output_schema is \{'a': 'int'\}; give Spark DDL"):
        parse_schema({"a": "int"})


@pytest.mark.parametrize(
    ("given_type", "kind"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), NTZ),
        (pa.timestamp("s", "Europe/Berlin"), UTC),
        (pa.decimal256(30, 2), pa.decimal128(30, 2)),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.uint8(), 3), pa.list_(pa.int16())),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.struct([pa.field("x", pa.timestamp("ms"), False)]), pa.struct([pa.field("x", NTZ, False)])),
    ],
)
def test_a_pyarrow_schema_gets_the_types_that_spark_reads(given_type: pa.DataType, kind: pa.DataType) -> None:
    schema = parse_schema(pa.schema([pa.field("c", given_type, False, {"comment": "x", "other": "y"})]))
    assert schema == pa.schema([pa.field("c", kind, False)])
    assert schema.field("c").metadata == {b"comment": b"x"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.duration("s"), r"column 'c' is duration\[s\], which Spark does not read"),
        (pa.time64("us"), r"column 'c' is time64\[us\]"),
        (pa.null(), r"column 'c' is null"),
        (pa.decimal256(40, 2), r"column 'c' is decimal256\(40, 2\)"),
        (pa.decimal128(5, -2), r"column 'c' is decimal128\(5, -2\)"),
        (pa.struct([]), r"column 'c' is struct<>"),
        (pa.struct([("x", pa.list_(pa.month_day_nano_interval()))]), r"column 'c\.x' is month_day_nano_interval"),
        (pa.list_(pa.field("element", pa.int32(), False)), r"make its elements nullable"),
        (pa.map_(pa.string(), pa.field("value", pa.int32(), False)), r"make its elements nullable"),
        (pa.dense_union([pa.field("x", pa.int32())]), r"column 'c' is dense_union"),
    ],
)
def test_a_pyarrow_type_unknown_to_spark_is_refused(kind: pa.DataType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(pa.schema([("c", kind)]))


def test_the_output_has_the_sequence_after_the_declared_columns() -> None:
    written = output_schema(parse_schema("a int"))
    assert written == pa.schema([("a", pa.int32()), pa.field("_sequence", pa.int64(), nullable=False)])


# Back to DDL

names = st.text("aB1_` é'-\\", min_size=1, max_size=6)
leaves = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        UTC,
        NTZ,
        pa.decimal128(38, 4),
        pa.decimal128(3, 3),
    ]
)


def fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    comment = st.none() | st.text("x'\"\\\n%_ né", min_size=1).map(lambda text: {"comment": text})
    field = st.builds(pa.field, names, kinds, st.booleans(), comment)
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda f: f.name.lower())


kinds = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32()]), inner),
        fields(inner).map(pa.struct),
    ),
    max_leaves=6,
)


@given(fields(kinds))
def test_ddl_says_all_of_a_schema(columns: list[pa.Field]) -> None:
    schema = pa.schema(columns)
    assert parse_schema(schema_to_ddl(schema)).equals(schema, check_metadata=True)


# Changes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a int, b string", "a int, b string"),
        ("a int", "a int, b string"),
        ("a int, c int", "a int, b string, c int"),
        ("a int COMMENT 'x'", "a int COMMENT 'y'"),
        ("", "a int NOT NULL"),
    ],
)
def test_nullable_columns_may_be_added(old: str, new: str) -> None:
    check_change(parse_schema(old), parse_schema(new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a int, b string", "a int", "column 'b', string, is gone"),
        ("a int", "a bigint", "column 'a' was int, is now bigint"),
        ("a int", "a int NOT NULL", "column 'a' was int, is now int NOT NULL"),
        ("a int NOT NULL", "a int", "column 'a' was int NOT NULL, is now int"),
        ("a int", "a int, b string NOT NULL", "column 'b' is new and NOT NULL"),
        ("a int, b int", "b int, a int", "the columns a, b now come in the order b, a"),
        (
            "s struct<x: int>",
            "s struct<x: int, y: int>",
            "column 's' was struct<x: int>, is now struct<x: int, y: int>",
        ),
        ("a int", "A int", "column 'a', int, is gone"),
        (
            "a int, b int",
            "a string, c int NOT NULL",
            "column 'b', int, is gone; column 'a' was int, is now string; column 'c'",
        ),
    ],
)
def test_other_schema_changes_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SchemaError) as refused:
        check_change(parse_schema(old), parse_schema(new))
    assert message in str(refused.value)
    assert "add nullable ones" in str(refused.value)
    assert "new processor name" in str(refused.value)


# Spark itself

TAKEN = [
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long, j float, k real, l double",
    "a decimal, b dec(5), c numeric(12, 4), d string, e binary, f date, g timestamp, h timestamp_ltz, i timestamp_ntz",
    "a timestamp without time zone, b timestamp with local time zone",
    "a array<int>, b map<string, array<double>>, c struct<x: int, y: struct<z: string NOT NULL>>, d struct<x int>",
    "a: int, `b c` string NOT NULL COMMENT 'it''s \\\"x\\\" \\t', 1a int, date date, select int, array array<int>",
    "A INT, b Array<Struct<X: Map<Int, String>>> -- end\n, /* c */ c int",
    "struct<a:int,b:array<string>>",
]
REFUSED = [
    "a int b int",
    "a int,",
    "a",
    "a array<int",
    "a map<int>",
    "a array<int not null>",
    "a-b int",
    "é int",
    "1 int",
    "1e5 int",
    "10L int",
    "a int not",
    "a int comment x",
    "a int default 3",
    "a int comment 'x' not null",
    "a string(5)",
    "a int(5)",
    "a decimal(39,2)",
    "a decimal(5,-1)",
    "a bool",
    "a text",
    "a int64",
    "a double precision",
    "a timestamp with time zone",
    "a.b int",
    "a int null",
]


async def test_comments_that_were_changed_are_recorded_too() -> None:
    store, layout = Store(MemoryStore()), ProcessorLayout("p")
    for ddl in ("n bigint COMMENT 'one'", "n bigint COMMENT 'two'"):
        assert await agree_on_schema(store, layout, parse_schema(ddl)) == []
        recorded = await read_schema(store, layout)
        assert recorded is not None
        assert schema_to_ddl(recorded) == schema_to_ddl(parse_schema(ddl))
