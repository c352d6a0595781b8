"""`RedisSink`: committed rows in a stream. One script compares and sets the sink's row, and adds the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import msgspec
import pyarrow as pa
from msgspec.structs import astuple
from redis.exceptions import RedisError

from actorproc.config.options import parse_options
from actorproc.connectors.redis.client import Client, connect, reconnect, refusal
from actorproc.connectors.redis.keys import position_key, tag_of
from actorproc.connectors.redis.options import RedisOptions
from actorproc.connectors.redis.scripts import APPEND, FIELDS, MOVED
from actorproc.connectors.redis.values import packed_rows
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkMoved, SinkPlace, SinkRefused, SinkRow


class RedisSink(Sink):
    """`redis://HOST:PORT/DATABASE`, or `rediss://` with TLS; a server, or a node of a cluster."""

    guarantee = Guarantee.EXACTLY_ONCE
    options: RedisOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, RedisOptions, given, of="sink")
        self.url = url
        self.place = place
        self._stream = self.options.stream or place.processor
        tag_of(self._stream)
        self._sink = f"{place.processor}/{place.name}"
        self._limit = anyio.CapacityLimiter(self.options.connections)
        self._client: Client | None = None
        self._append: Any = None

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        await self.close()
        self._client = await connect(self.url, self.options, f"actorproc-{self.place.processor}")
        self._append = self._client.register_script(APPEND)

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`."""
        client = self._opened()
        async with self._limit:
            found = await self._call(client.hmget(self._position(partition), list(FIELDS)))
        if found[0] is None:
            return None
        texts = dict(zip(FIELDS, (text.decode() for text in found), strict=True))
        return msgspec.convert(texts, SinkRow, strict=False)

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`."""
        origin = pa.repeat(pa.scalar(delivery.partition, pa.string()), delivery.rows.num_rows)
        rows = delivery.rows.append_column("_partition", origin)
        packed = await self.place.clock.run_cpu_work(rows.nbytes, packed_rows, rows)
        most = self.options.most_entries
        arguments = [_packed(delivery.was), _packed(delivery.now), "" if most is None else most, *packed]
        keys = [self._position(delivery.partition), self._stream]
        async with self._limit:
            answer = await self._call(self._append(keys=keys, args=arguments, client=self._opened()))
        if answer == MOVED:
            raise SinkMoved(f"sink {self._sink}, partition {delivery.partition}: its row is not {delivery.was}")
        if answer != b"ok":
            raise SinkRefused(f"{self.url}: the key {answer.decode(errors='replace')[5:]!r} is something else there")

    async def close(self) -> None:
        """See `Sink.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except RedisError as error:
            await reconnect(self._opened(), error)
            if (refused := refusal(error)) is not None:
                raise refused from error
            raise

    def _opened(self) -> Client:
        if self._client is None:
            raise RuntimeError("not opened")
        return self._client

    def _position(self, partition: str) -> str:
        return position_key(self._stream, self._sink, partition)


def _packed(row: SinkRow | None) -> bytes:
    """The fields as texts, as Redis has them."""
    return msgspec.msgpack.encode([] if row is None else [str(value) for value in astuple(row)])
