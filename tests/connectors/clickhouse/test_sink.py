"""The ClickHouse sink: the checks of the test kit, types, tables, and blocks that are sent again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc.connectors.clickhouse import ClickHouseSink
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.opening import make_sink
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkPlace, SinkRefused, SinkRow
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from tests.connectors.clickhouse.server import ClickHouse, clickhouse
from tests.servers import or_skip
from tests.sinks.matrix import tried

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("_sequence", pa.int64(), nullable=False)])
ROW = SinkRow("memory://x", 1, "t", 0, 1, "p0")


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouse]:
    with or_skip(clickhouse()) as found:
        yield found


def new_store() -> Store:
    return Store(MemoryStore(clock=SYSTEM), clock=SYSTEM)


def sink(server: ClickHouse, table: str, store: Store | None = None, **options: Any) -> ClickHouseSink:
    found = ClickHouseSink(server.url, {"table": table, **options}, SinkPlace("ch", "Orders", SYSTEM))
    found.keep_in(store or new_store(), ProcessorLayout("Orders"), "ch")
    return found


def delivery(count: int = 3, was: SinkRow | None = None, now: SinkRow = ROW, **more: Any) -> Delivery:
    rows = pa.table({"n": range(count), "_sequence": range(count)}, SCHEMA)
    return Delivery("0", rows, 0, (count,), was, now, **{"put_ids": ("p0",), **more})


async def deliver(server: ClickHouse, table: str, given: Delivery, store: Store | None = None, **options: Any) -> None:
    async with sink(server, table, store, **options) as found:
        await found.open(SCHEMA)
        await found.write(given)


async def test_it_is_idempotent(server: ClickHouse) -> None:
    server.command(
        "CREATE TABLE checked (day Nullable(String), moment Nullable(String), local Nullable(String),"
        " n Nullable(Int64), _sequence Int64, _partition String) ENGINE = MergeTree ORDER BY (_partition, _sequence)"
        " SETTINGS non_replicated_deduplication_window = 10000"
    )
    store = new_store()

    async def rows() -> Sequence[int]:
        return [n for (n,) in server.query("SELECT n FROM checked")]

    checked = await check_sink(lambda: sink(server, "checked", store), rows)
    tried("clickhouse", checked, on="the engine of ClickHouse behind an HTTP double", double=True)
    assert checked.guarantee is Guarantee.IDEMPOTENT


async def test_every_type_comes_back_as_it_was(server: ClickHouse) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    columns["day"] = pa.array([date(1900, 1, 1), date(2299, 12, 31), None], pa.date32())
    columns["moment"] = pa.array([datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)] * 2 + [None], pa.timestamp("us", "UTC"))
    columns["local"] = pa.array([datetime(1901, 1, 2), datetime(2298, 1, 1), None], pa.timestamp("us"))  # noqa: DTZ001
    rows = pa.table(columns).append_column(pa.field("_sequence", pa.int64(), nullable=False), pa.array(range(3)))
    async with sink(server, "typed") as found:
        await found.open(rows.schema)
        await found.write(Delivery("0", rows, 0, (3,), None, ROW, put_ids=("p0",)))
    first, second, third = (dict(zip([*rows.schema.names], row, strict=True)) for row in server.query(
        f"SELECT {', '.join(f'`{name}`' for name in rows.schema.names)} FROM typed ORDER BY _sequence"
    ))  # fmt: skip
    assert {third[name] for name in ALL_TYPES} == {None}
    assert (first["large"], first["flag"], second["flag"]) == (-(2**63), True, False)
    assert first["words"] == '", \\ \n\t; DROP TABLE x; --'
    assert (second["real"], first["single"]) == (float("inf"), 1.5)
    assert (first["day"], second["day"]) == (date(1900, 1, 1), date(2299, 12, 31))
    assert first["moment"].replace(tzinfo=UTC) == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert first["local"].replace(tzinfo=None) == datetime(1901, 1, 2)  # noqa: DTZ001
    kinds = dict(server.query("SELECT name, type FROM system.columns WHERE table = 'typed'"))
    assert {kinds["moment"], kinds["local"]} == {"Nullable(DateTime64(6, 'UTC'))"}  # whatever the server's zone is
    assert first["money"] == Decimal("-12345678901234567890123456789012.345678")
    assert (first["list"], first["map"], first["struct"]) == ('["a",null,"\\""]', '{"k":1}', '{"a":1,"b":null}')
    assert server.query("SELECT hex(bytes) FROM typed WHERE _sequence = 0") == [("00FF5C78",)]


@pytest.mark.parametrize("day", [date(1899, 12, 31), date(2300, 1, 1), date(1, 1, 1), date(9999, 12, 31)])
async def test_a_day_that_clickhouse_would_change_is_refused(server: ClickHouse, day: date) -> None:
    schema = pa.schema([pa.field("day", pa.date32()), *SCHEMA])
    rows = pa.table({"day": [day], "n": [1], "_sequence": [0]}, schema)
    async with sink(server, "days") as found:
        await found.open(schema)
        with pytest.raises(SinkRefused, match="ClickHouse has days from 1900-01-01"):
            await found.write(Delivery("0", rows, 0, (1,), None, ROW, put_ids=("p0",)))


async def test_a_lost_answer_doubles_nothing(server: ClickHouse) -> None:
    store = new_store()
    server.lose(3)
    for _ in range(2):
        with pytest.raises(SinkError):
            await deliver(server, "lost", delivery(), store)
        if server.query("SELECT count() FROM system.tables WHERE name = 'lost'") == [(1,)]:
            assert server.query("SELECT count() FROM lost") == [(3,)]
    server.lose(0)
    await deliver(server, "lost", delivery(), store)
    assert server.query("SELECT count(), uniqExact(n) FROM lost") == [(3, 3)]


async def test_a_large_commit_doubles_nothing(server: ClickHouse) -> None:
    for _ in range(3):  # as hosts would that find no position
        await deliver(server, "large", delivery(250_000))
    assert server.query("SELECT count(), uniqExact(n) FROM large") == [(250_000, 250_000)]


async def test_commits_that_are_joined_in_another_way_double_nothing(server: ClickHouse) -> None:
    rows = pa.table({"n": range(6), "_sequence": range(6)}, SCHEMA)
    both = Delivery("0", rows, 0, (2, 4), None, replace(ROW, position=2), put_ids=("a", "b"))
    one = Delivery("0", rows.slice(0, 2), 0, (2,), None, ROW, put_ids=("a",))
    other = Delivery("0", rows.slice(2), 1, (4,), None, replace(ROW, position=2), put_ids=("b",))
    for each in (one, both, other):
        await deliver(server, "joined", each)
    assert server.query("SELECT count() FROM joined") == [(6,)]


async def test_equal_rows_of_another_commit_and_of_a_redelivery_arrive(server: ClickHouse) -> None:
    await deliver(server, "again", delivery())
    await deliver(server, "again", delivery(now=replace(ROW, term="u")))
    await deliver(server, "again", delivery(put_ids=("other",)))
    assert server.query("SELECT count() FROM again") == [(9,)]


async def test_a_materialized_view_gets_each_row_once(server: ClickHouse) -> None:
    await deliver(server, "source", delivery(0, now=ROW))
    server.command("CREATE TABLE sums (n Nullable(Int64)) ENGINE = MergeTree ORDER BY tuple() "
                   "SETTINGS non_replicated_deduplication_window = 1000")  # fmt: skip
    server.command("CREATE MATERIALIZED VIEW into_sums TO sums AS SELECT n FROM source")
    for _ in range(3):
        await deliver(server, "source", delivery())
    assert server.query("SELECT count() FROM sums") == [(3,)]


async def test_a_block_of_several_partitions_doubles_nothing(server: ClickHouse) -> None:
    """As in ClickHouse/ClickHouse#56642: a block is cut by the table's partitions, each part known again."""
    server.command("CREATE TABLE parted (n Int64, _sequence Int64, _partition String) ENGINE = MergeTree "
                   "PARTITION BY n % 7 ORDER BY n SETTINGS non_replicated_deduplication_window = 10000")  # fmt: skip
    for _ in range(3):
        await deliver(server, "parted", delivery(1000))
    assert server.query("SELECT count() FROM parted") == [(1000,)]


async def test_a_redelivery_fills_a_table_that_was_emptied(server: ClickHouse) -> None:
    """As in ClickHouse/ClickHouse#827: an emptied table may still know its blocks."""
    await deliver(server, "emptied", delivery())
    server.command("TRUNCATE TABLE emptied")
    await deliver(server, "emptied", delivery(now=replace(ROW, term="redelivered")))
    assert server.query("SELECT count() FROM emptied") == [(3,)]


async def test_killing_the_server_loses_and_doubles_nothing(server: ClickHouse) -> None:
    store = new_store()
    await deliver(server, "killed", delivery(), store)
    server.kill()
    with pytest.raises(SinkError):
        await deliver(server, "killed", delivery(was=ROW, now=replace(ROW, position=2)), store)
    server.start()
    await deliver(server, "killed", delivery())  # again, as after a crash of the host
    assert server.query("SELECT count() FROM killed") == [(3,)]


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("MergeTree ORDER BY n", "knows only its latest 0 blocks again"),
        ("MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 100", "latest 100 blocks"),
        ("Log", "has the engine Log"),
    ],
)
async def test_a_table_that_does_not_know_blocks_again_is_refused(server: ClickHouse, engine: str, why: str) -> None:
    server.command("DROP TABLE IF EXISTS forgets")
    server.command(f"CREATE TABLE forgets (n Int64, _sequence Int64, _partition String) ENGINE = {engine}")
    async with sink(server, "forgets") as found:
        with pytest.raises(SinkRefused, match=why):
            await found.open(SCHEMA)
    if engine.startswith("MergeTree"):
        server.command("ALTER TABLE forgets MODIFY SETTING non_replicated_deduplication_window = 10000")
        await deliver(server, "forgets", delivery())


async def test_what_it_may_not_create_is_refused(server: ClickHouse) -> None:
    with pytest.raises(SinkRefused, match="there is no table nowhere"):
        await deliver(server, "nowhere", delivery(), create=False)
    server.command("CREATE TABLE less (_sequence Int64, _partition String) ENGINE = MergeTree ORDER BY _sequence "
                   "SETTINGS non_replicated_deduplication_window = 10000")  # fmt: skip
    with pytest.raises(SinkRefused, match="lacks the columns n"):
        await deliver(server, "less", delivery(), create=False)
    await deliver(server, "less", delivery())
    assert server.query("SELECT count(n) FROM less") == [(3,)]


async def test_rows_that_do_not_fit_are_refused(server: ClickHouse) -> None:
    server.command("CREATE TABLE other (n Array(Int64), _sequence Int64, _partition String) ENGINE = MergeTree "
                   "ORDER BY _sequence SETTINGS non_replicated_deduplication_window = 10000")  # fmt: skip
    with pytest.raises(SinkRefused):
        await deliver(server, "other", delivery())


@pytest.mark.parametrize(
    "url", ["clickhouse:x", "clickhouse://", "clickhouse://h/a/b", "clickhouse://h:x/", "clickhouse://h/?a=b"]
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        make_sink("ch", url, processor="p", clock=SYSTEM)


async def refusal(server: ClickHouse, table: str, schema: pa.Schema) -> str:
    """Why a host would not start with this table."""
    async with sink(server, table) as found:
        with pytest.raises(SinkRefused) as caught:
            await found.check(schema)
    return str(caught.value)


@pytest.mark.parametrize(
    ("there", "kind"),
    [
        ("Int32", pa.int64()), ("UInt64", pa.int64()), ("Float64", pa.int64()), ("Float32", pa.float64()),
        ("Nullable(Int64)", pa.string()), ("Date", pa.date32()), ("DateTime", pa.timestamp("us", "UTC")),
        ("DateTime64(3)", pa.timestamp("us")), ("Decimal(10, 2)", pa.decimal128(10, 4)), ("Bool", pa.float64()),
        ("Array(Int64)", pa.binary()),
    ],
)  # fmt: skip
async def test_a_column_that_would_change_values_is_refused_at_the_start(
    server: ClickHouse, there: str, kind: pa.DataType
) -> None:
    name = re.sub(r"\W+", "_", f"narrow_{there}_{kind}")
    server.command(
        f"CREATE TABLE {name} (x {there}, _sequence Int64, _partition String) ENGINE = MergeTree ORDER BY _sequence"
        " SETTINGS non_replicated_deduplication_window = 10000"
    )
    schema = pa.schema([("x", kind), pa.field("_sequence", pa.int64(), nullable=False)])
    assert f"column x of table {name} is {there}" in await refusal(server, name, schema)
    assert server.query(f"SELECT count() FROM {name}") == [(0,)]


async def test_wider_columns_take_rows(server: ClickHouse) -> None:
    types = {
        "a": ("Int128", pa.int64()), "b": ("LowCardinality(Nullable(String))", pa.int8()), "c": ("UUID", pa.string()),
        "d": ("DateTime64(9, 'Asia/Tokyo')", pa.timestamp("us", "UTC")), "e": ("Decimal(20, 5)", pa.decimal128(10, 4)),
        "f": ("Enum8('it\\'s' = 1)", pa.string()),
    }  # fmt: skip
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in types.items())
    server.command(
        f"CREATE TABLE wider ({columns}, _sequence Int64, _partition LowCardinality(String)) ENGINE = MergeTree"
        " ORDER BY _sequence SETTINGS non_replicated_deduplication_window = 10000"
    )
    schema = pa.schema([*((name, kind) for name, (_, kind) in types.items()), SCHEMA.field("_sequence")])
    async with sink(server, "wider") as found:
        await found.check(schema)


async def test_a_null_for_a_column_that_cannot_be_null_is_refused(server: ClickHouse) -> None:
    server.command(
        "CREATE TABLE full (n Int64, _sequence Int64, _partition String) ENGINE = MergeTree ORDER BY _sequence"
        " SETTINGS non_replicated_deduplication_window = 10000"
    )
    rows = pa.table({"n": [1, None], "_sequence": [0, 1]}, SCHEMA)
    async with sink(server, "full") as found:
        await found.open(SCHEMA)
        with pytest.raises(SinkRefused):
            await found.write(Delivery("0", rows, 0, (2,), None, ROW, put_ids=("p0",)))
    assert server.query("SELECT n FROM full") == []
