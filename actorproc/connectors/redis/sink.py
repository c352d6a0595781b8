"""`RedisSink`: committed rows in a stream, or in hashes by key. One script sets the sink's row and the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import anyio
import msgspec
import pyarrow as pa
from msgspec.structs import astuple
from redis.asyncio import RedisCluster
from redis.exceptions import NoPermissionError, RedisError

from actorproc.config.options import parse_options
from actorproc.connectors.redis.client import Client, connect, reconnect, refusal
from actorproc.connectors.redis.keys import has_tag, position_key, tag_of
from actorproc.connectors.redis.options import RedisOptions
from actorproc.connectors.redis.rights import check_rights, check_type
from actorproc.connectors.redis.scripts import APPEND, FIELDS, MOVED, READ, UPSERT
from actorproc.connectors.redis.values import keyed_rows, packed_rows
from actorproc.sinks.protocol import Ability, Delivery, Guarantee, Sink, SinkMoved, SinkPlace, SinkRefused, SinkRow


class RedisSink(Sink):
    """`redis://HOST:PORT/DATABASE`, or `rediss://` with TLS; a server, or a node of a cluster."""

    guarantee = Guarantee.EXACTLY_ONCE
    can: ClassVar[frozenset[Ability]] = frozenset({"upsert"})
    fixed_options: ClassVar[tuple[str, ...]] = ("mode", "key", "stream", "prefix")
    options: RedisOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, RedisOptions, given, of="sink")
        self.url = url
        self.place = place
        self._is_keyed = self.options.mode == "upsert"
        self._target = (self.options.prefix if self._is_keyed else self.options.stream) or place.processor
        tag_of(self._target)
        self._sink = f"{place.processor}/{place.name}"
        self._limit = anyio.CapacityLimiter(self.options.connections)
        self._client: Client | None = None
        self._script: Any = None
        self._read: Any = None

    async def open(self, schema: pa.Schema) -> None:
        """See `Sink.open`."""
        await self.close()
        if self._is_keyed and "_version" in schema.names:
            raise SinkRefused("the output must not have a column _version: the sink has one of this name")
        self._client = await connect(self.url, self.options, f"actorproc-{self.place.processor}")
        if self._is_keyed and isinstance(self._client, RedisCluster) and not has_tag(self._target):
            raise SinkRefused(
                f"{self.url} is a cluster, and a delivery must be in one slot: set the option prefix to "
                f"{{{self._target}}}, with the braces"
            )
        self._script = self._client.register_script(UPSERT if self._is_keyed else APPEND)
        self._read = self._client.register_script(READ)
        await self._try()

    async def _try(self) -> None:
        """Try what a delivery needs, and change nothing.

        Raises:
            SinkRefused: a right is missing, or a key is something else.
        """
        client, keys = self._opened(), [self._position("")]
        keys += [*self._ours(), f"{self._target}:"] if self._is_keyed else [self._target]
        never = SinkRow("", -1, "", -1, -1)  # so the script ends at its comparison
        try:
            await self._call(check_rights(client, keys, UPSERT if self._is_keyed else APPEND))
            if not self._is_keyed:
                await self._call(check_type(client, self._target, "stream"))
            await self._call(self._script(keys=keys, args=[_packed(never), _packed(never), ""], client=client))
        except SinkRefused as refused:
            if isinstance(refused.__cause__, NoPermissionError):  # Redis 6 does not name the key
                raise SinkRefused(f"{refused}; the user needs the keys {', '.join(keys)}") from None
            raise

    async def read(self, partition: str) -> SinkRow | None:
        """See `Sink.read`."""
        client, position = self._opened(), self._position(partition)
        async with self._limit:
            if self._is_keyed:
                found = await self._call(client.hmget(position, list(FIELDS)))
            else:
                found = await self._call(self._read(keys=[position, self._target], args=[partition], client=client))
        if found[0] is None:
            return None
        texts = dict(zip(FIELDS, (text.decode() for text in found), strict=True))
        return msgspec.convert(texts, SinkRow, strict=False)

    async def write(self, delivery: Delivery) -> None:
        """See `Sink.write`."""
        work = self._upsert if self._is_keyed else self._append
        keys, arguments = await self.place.clock.run_cpu_work(delivery.rows.nbytes, work, delivery)
        keys = [self._position(delivery.partition), *keys]
        arguments = [_packed(delivery.was), _packed(delivery.now), *arguments]
        async with self._limit:
            answer = await self._call(self._script(keys=keys, args=arguments, client=self._opened()))
        if answer == MOVED:
            raise SinkMoved(f"sink {self._sink}, partition {delivery.partition}: its row is not {delivery.was}")
        if answer != b"ok":
            raise SinkRefused(f"{self.url}: the key {answer.decode(errors='replace')[5:]!r} is something else there")

    def _append(self, delivery: Delivery) -> tuple[list[Any], list[Any]]:
        origin = pa.repeat(pa.scalar(delivery.partition, pa.string()), delivery.rows.num_rows)
        packed = packed_rows(delivery.rows.append_column("_partition", origin))
        most = self.options.most_entries
        return [self._target], ["" if most is None else most, delivery.partition, *packed]

    def _upsert(self, delivery: Delivery) -> tuple[list[Any], list[Any]]:
        rows = keyed_rows(delivery, self.options)
        prefix = self._target.encode() + b":"
        return [*self._ours(), *(prefix + key for key in rows.keys)], [
            delivery.registration, f"{delivery.depth:010d}", *rows.packed
        ]  # fmt: skip

    def _ours(self) -> list[str]:
        """Keys of the hashes beside the rows: lives of the target, and versions of deleted keys."""
        return [f"actorproc:{{{tag_of(self._target)}}}:{kind}:{self._target}" for kind in ("lives", "deleted")]

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
        return position_key(self._target, self._sink, partition)


def _packed(row: SinkRow | None) -> bytes:
    """The fields as texts, as Redis has them."""
    return msgspec.msgpack.encode([] if row is None else [str(value) for value in astuple(row)])
