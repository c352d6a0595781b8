"""`RegistryDecoder`: values that name their schema in a registry by its id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import anyio
import numpy as np
import pyarrow as pa

from actorproc.codecs.grouped import Group, GroupedDecoder, Part
from actorproc.codecs.registry import RegistrySchema, SchemaRegistry
from actorproc.codecs.wire_format import HEADER, NO_ID, no_header, schema_id, schema_ids, without_first
from actorproc.errors import DecodeError, SchemaError, UsageError
from actorproc.handler.decoder import Decoder
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.error_text import format_error


class RegistryFormat(ABC):
    """How schemas of one kind are used."""

    kind: ClassVar[str]
    """Its name in the registry: AVRO, PROTOBUF or JSON."""

    @abstractmethod
    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        """A decoder of values by a schema, without the id. May take long.

        Raises:
            ValueError: the schema cannot be used.
        """

    @abstractmethod
    def columns(self, schema: RegistrySchema) -> pa.Schema:
        """The columns of a schema, all of them nullable, so that a later version may leave one out.

        Raises:
            SchemaError: a part of it has no column type.
        """


class RegistryDecoder(GroupedDecoder):
    """Decodes Confluent's wire format. Schemas are fetched once, before the records that need them are handled.

    Args:
        use: how schemas are used, of the one kind that can be decoded.
        reader: `SUBJECT` or `SUBJECT:VERSION` whose schema the values are resolved into; None: the one they name.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        use: RegistryFormat,
        reader: str | None = None,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._registry = registry
        self._use = use
        self._reader_subject = reader
        self._reader: RegistrySchema | None = None
        self._clock = clock
        self._parts: dict[int, Part | str] = {}  # by schema id; a text says why it cannot be used
        self._fetching = anyio.Lock()

    async def prepare(self, values: pa.Array) -> None:
        wanted = set(np.unique(schema_ids(values)).tolist()) - self._parts.keys() - {NO_ID}
        if not wanted:
            return
        async with self._fetching:  # other partitions need the same schemas
            if self._reader is None and self._reader_subject is not None:
                self._reader = await self._version("decode_schema", self._reader_subject)
            for number in sorted(wanted - self._parts.keys()):
                if (schema := await self._registry.schema(number)) is not None:
                    self._parts[number] = await self._clock.run_in_thread(self._part, schema)

    def _part(self, schema: RegistrySchema) -> Part | str:
        name = f"schema id {schema.id}"
        if schema.kind != self._use.kind:
            return f"{name} is {schema.kind}, and the setting decode expects {self._use.kind}"
        try:
            return Part(name, self._use.decoder(schema, self._reader))
        except ValueError as error:
            return f"{name} cannot be used: {error}"

    def split_one(self, value: bytes) -> tuple[Part, bytes]:
        return self._known(schema_id(value)), value[HEADER:]

    def split(self, values: pa.Array) -> tuple[list[Group], dict[int, DecodeError]]:
        ids = schema_ids(values)
        groups: list[Group] = []
        errors: dict[int, DecodeError] = {}
        for number in np.unique(ids).tolist():
            indexes = np.flatnonzero(ids == number)
            try:
                part = self._known(number) if number != NO_ID else None
            except DecodeError as error:
                errors.update(dict.fromkeys(indexes.tolist(), error))
                continue
            if part is None:
                errors.update({at: no_header(values[at].as_py()) for at in indexes.tolist()})
                continue
            chosen = values if len(indexes) == len(values) else values.take(pa.array(indexes))
            groups.append(Group(part, without_first(chosen, HEADER), indexes))
        return groups, errors

    def _known(self, number: int) -> Part:
        part = self._parts.get(number)
        if isinstance(part, Part):
            return part
        raise DecodeError(part or f"schema id {number} is not in the registry {self._registry.url}")

    async def output_schema(self, subject: str) -> pa.Schema:
        schema = await self._version("output_schema", subject)
        try:
            return self._use.columns(schema)
        except SchemaError:
            raise
        except Exception as error:  # of any kind, as anybody may have registered the schema
            raise SchemaError(
                f"output_schema = 'registry:{subject}': schema id {schema.id} has no columns: {format_error(error)}. "
                "Declare output_schema yourself"
            ) from error

    async def _version(self, setting: str, subject: str) -> RegistrySchema:
        """The schema of `SUBJECT` or `SUBJECT:VERSION`."""
        name, _, version = subject.rpartition(":")  # names of subjects may have colons, too
        if not version.isdigit():
            name, version = subject, ""
        schema = await self._registry.version(name, int(version) if version else None)
        if schema is None:
            raise UsageError(f"{setting} = 'registry:{subject}': {self._registry.url} has no such subject or version")
        return schema

    async def close(self) -> None:
        await self._registry.close()
