"""`ClickHouseSink`: committed rows in a table. The server drops a block that is sent again, by its token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import anyio
import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError

from actorproc.config.options import parse_options
from actorproc.connectors.clickhouse.columns import as_stored
from actorproc.connectors.clickhouse.options import ClickHouseOptions, address_of
from actorproc.connectors.clickhouse.table import prepare, quoted
from actorproc.sinks.positions import PositionsInContainer, SentCommit, commits_of
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkPlace, SinkRefused

T = TypeVar("T")

_BLOCK_ROWS = 100_000
"""Most rows of a block: a large commit is several. Fixed, since a token names them."""

_SETTINGS = {
    "insert_deduplicate": 1,
    "input_format_null_as_default": 0,  # a column that cannot be null would get a zero in silence
    "async_insert": 0,  # it would join blocks of several requests
    "wait_end_of_query": 1,  # so that the status says whether it has failed
    "min_insert_block_size_rows": 10**9,  # one insert is one block, whatever the user's profile says
    "min_insert_block_size_bytes": 0,
    "deduplicate_blocks_in_dependent_materialized_views": 1,  # a view that has failed gets the block that is repeated
}

_REFUSED = {6, 16, 27, 41, 53, 60, 69, 70, 117, 122, 131, 190, 321, 349, 407, 469, 497, 516}
"""Codes of errors that say that rows do not fit, or that a table or a right is missing."""


class ClickHouseSink(PositionsInContainer):
    """`clickhouse://USER@HOST:PORT/DATABASE`: the HTTP port; with TLS `clickhouses://`."""

    guarantee = Guarantee.IDEMPOTENT
    fixed_options: ClassVar[tuple[str, ...]] = ("mode", "key", "table")
    options: ClickHouseOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, ClickHouseOptions, given, of="sink")
        self.url = url
        self.place = place
        self._address = address_of(url, place.name, self.options)
        self._table = self.options.table or place.processor
        self._limit = anyio.CapacityLimiter(self.options.connections)
        self._client: Any = None
        self._columns: Mapping[str, str] = {}

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        schema = schema.append(pa.field("_partition", pa.string(), nullable=False))

        def opened() -> tuple[Any, Mapping[str, str]]:
            client = self._client or clickhouse_connect.get_client(**self._address)
            return client, prepare(client, self._table, schema, self.options)

        self._client, self._columns = await self._in_thread(opened)

    async def send(self, delivery: Delivery) -> None:
        """See `PositionsInContainer.send`."""
        for commit in commits_of(delivery):
            for first in range(0, commit.rows.num_rows, _BLOCK_ROWS):
                await self._in_thread(self._insert, commit, first, first + _BLOCK_ROWS)

    def _insert(self, commit: SentCommit, first: int, stop: int) -> None:
        rows = commit.rows.slice(first, stop - first)
        origin = pa.repeat(pa.scalar(commit.partition, pa.string()), rows.num_rows)
        block = as_stored(rows.append_column("_partition", origin), self._columns)
        token = commit.key(first, stop)
        self._client.insert_arrow(
            quoted(self._table), block, settings={**_SETTINGS, "insert_deduplication_token": token}
        )

    async def close(self) -> None:
        """See `Sink.close`."""
        client, self._client = self._client, None
        if client is not None:
            await self.place.clock.run_in_thread(client.close)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """A caller that is cancelled does not wait: a block that lands later is known by its token."""
        try:
            return await self.place.clock.run_in_thread(work, *args, limiter=self._limit, abandon=True)
        except ClickHouseError as error:
            text = str(error)[:1000]
            code = re.search(r"[Cc]ode:? (\d+)", text)
            kind = SinkRefused if code is not None and int(code[1]) in _REFUSED else SinkError
            raise kind(f"table {self._table}: {text}") from error
