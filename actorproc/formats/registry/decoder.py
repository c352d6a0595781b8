"""`RegistryDecoder`: values that name their schema in a registry by its id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict
from typing import ClassVar

import anyio
import numpy as np
import pyarrow as pa

from actorproc.codecs.limits import DEFAULT, Limits
from actorproc.errors import DecodeError, SchemaError, SourceError, UsageError
from actorproc.formats.grouped import Group, GroupedDecoder, Part
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.formats.registry.unknown_ids import UnknownIds
from actorproc.formats.registry.wire_format import HEADER, NO_ID, no_header, schema_id, schema_ids, without_first
from actorproc.handler.decoder import PASSED_ON, Decoder
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.error_text import format_error

AT_ONCE = 16
"""Schemas that a host asks for at once."""


class RegistryFormat(ABC):
    """How schemas of one kind are used. `limits`: of a value."""

    kind: ClassVar[str]
    """Its name in the registry: AVRO, PROTOBUF or JSON."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.limits = limits

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


class _Lookup:
    """A schema that one partition asks for, and others wait for."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.failure: SourceError | None = None


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
        self._unknown = UnknownIds(registry.url, clock)
        self._reading = anyio.Lock()
        self._at_once = anyio.Semaphore(AT_ONCE)
        self._asked: dict[int, _Lookup] = {}  # by id: other partitions need the same schemas

    async def prepare(self, values: pa.Array) -> None:
        ids, counts = np.unique(schema_ids(values), return_counts=True)
        wanted = {
            number: count
            for number, count in zip(ids.tolist(), counts.tolist(), strict=True)
            if number not in self._parts and number != NO_ID and number not in self._unknown
        }
        if not wanted:
            return
        if self._reader is None and self._reader_subject is not None:
            async with self._reading:
                self._reader = self._reader or await self._version("decode_schema", self._reader_subject)
        # An id of many records first: it is less likely a random one.
        queue = deque(sorted(wanted, key=lambda number: (-wanted[number], number)))
        failures: list[SourceError] = []

        async def ask() -> None:
            while queue and not failures:
                try:
                    await self._look_up(queue.popleft())
                except SourceError as error:
                    failures.append(error)

        async with anyio.create_task_group() as group:
            for _ in range(min(AT_ONCE, len(queue))):
                group.start_soon(ask)
        if failures:
            raise failures[0]

    async def _look_up(self, number: int) -> None:
        """Ask for a schema, or wait until another partition has."""
        while (other := self._asked.get(number)) is not None:
            await other.done.wait()
            if other.failure is not None:
                raise SourceError(str(other.failure))
        if number in self._parts or number in self._unknown:
            return
        lookup = self._asked[number] = _Lookup()
        try:
            await self._ask(number)
        except SourceError as error:
            lookup.failure = error
            raise
        finally:
            del self._asked[number]
            lookup.done.set()

    async def _ask(self, number: int) -> None:
        async with self._at_once:
            if not self._unknown.may_ask():
                return
            known = None
            try:
                schema = await self._registry.schema(number)
                known = schema is not None
            except DecodeError as error:  # of this schema, whenever it is asked for
                self._parts[number] = f"schema id {number} cannot be used: {error}"
                return
            finally:
                self._unknown.answered(number, known=known)
        if schema is not None:
            self._parts[number] = await self._clock.run_in_thread(self._part, schema)

    def _part(self, schema: RegistrySchema) -> Part | str:
        name = f"schema id {schema.id}"
        if schema.kind != self._use.kind:
            return f"{name} is {schema.kind}, and the setting decode expects {self._use.kind}"
        try:
            return Part(name, self._use.decoder(schema, self._reader))
        except PASSED_ON:
            raise
        except OSError as error:  # of this machine, such as a full disk: no schema is at fault
            raise SourceError(f"{name} cannot be compiled now: {format_error(error)}") from None
        except BaseException as error:  # noqa: BLE001  # compilers of schemas are libraries, too
            return f"{name} cannot be used: {error if isinstance(error, ValueError) else format_error(error)}"

    def split_one(self, value: bytes) -> tuple[Part, bytes]:
        return self._known(schema_id(value)), value[HEADER:]

    def split(self, values: pa.Array) -> tuple[list[Group], dict[int, DecodeError]]:
        ids = schema_ids(values)
        groups: list[Group] = []
        errors: dict[int, DecodeError] = {}
        # One sort, since each value may have an id of its own.
        order = np.argsort(ids, kind="stable")
        numbers, starts = np.unique(ids[order], return_index=True)
        for number, indexes in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
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
        raise DecodeError(part or self._unknown.reason(number))

    async def output_schema(self, subject: str) -> pa.Schema:
        schema = await self._version("output_schema", subject)
        try:
            return await self._clock.run_in_thread(self._use.columns, schema)
        except PASSED_ON:
            raise
        except SchemaError:
            raise
        except BaseException as error:  # noqa: BLE001  # see `_part`
            raise SchemaError(
                f"output_schema = 'registry:{subject}': schema id {schema.id} has no columns: {format_error(error)}. "
                "Declare output_schema yourself"
            ) from None

    async def _version(self, setting: str, subject: str) -> RegistrySchema:
        """The schema of `SUBJECT` or `SUBJECT:VERSION`."""
        name, _, version = subject.rpartition(":")  # names of subjects may have colons, too
        if not version.isdigit():
            name, version = subject, ""
        try:
            schema = await self._registry.version(name, int(version) if version else None)
        except DecodeError as error:
            raise UsageError(f"{setting} = 'registry:{subject}' cannot be used: {error}") from None
        if schema is None:
            raise UsageError(f"{setting} = 'registry:{subject}': {self._registry.url} has no such subject or version")
        return schema

    async def subjects(self, limit: int) -> tuple[list[dict[str, object]], int]:
        found, count = await self._registry.subjects(limit)
        return list(map(asdict, found)), count

    async def close(self) -> None:
        await self._registry.close()
