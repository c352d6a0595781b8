"""A schema registry that speaks Confluent's API, through confluent-kafka's client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from actorproc.errors import DecodeError, SchemaError, SettingsError, SourceError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.error_text import format_error

T = TypeVar("T")

_SERIALIZED = "serialized"  # Protobuf as a descriptor, which needs no compiler; other formats ignore it
_NOT_FOUND = (40401, 40402, 40403)  # subject, version, schema; a plain 404 says that the URL is wrong

_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)

MOST_REFERENCES = 200
"""Schemas to which a schema may refer, those of its references included: each is a request."""


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """A registered schema.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        references: texts of the schemas on which it builds, by the names that it gives them, each after its own.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """The latest version of a subject, and the compatibility that new versions must have."""

    name: str
    version: int
    id: int
    kind: str
    compatibility: str


class SchemaRegistry:
    """Reads and registers schemas.

    Args:
        url: of the API, such as `http://127.0.0.1:8081`; several are separated by commas.
        options: of the client by their own names, such as `basic.auth.user.info` and `ssl.ca.location`.
        timeout: seconds for a request.

    Raises:
        SettingsError: the client refuses the URL or an option.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, *, timeout: float = 15, clock: Clock = SYSTEM
    ) -> None:
        if "@" in url:
            raise SettingsError(
                "schema_registry = ...@...: no credentials in a URL; put basic.auth.user.info into "
                "schema_registry_options"
            )
        self.url = url
        self._clock = clock
        self._conf = {"timeout": timeout, "max.retries": 1, **(options or {}), "url": url}
        try:
            self._client = SchemaRegistryClient(self._conf)
        except (ValueError, TypeError, OSError) as error:
            raise SettingsError(f"schema_registry, schema_registry_options: {error}") from None

    async def schema(self, schema_id: int) -> RegistrySchema | None:
        """The schema with this id; None if there is none.

        Raises:
            SourceError: the registry does not answer, or refuses.
            DecodeError: it has more references than `MOST_REFERENCES`.
        """

        def read() -> RegistrySchema:
            schema = _in_a_format(lambda form: self._client.get_schema(schema_id, fmt=form))
            return self._read(schema_id, schema)

        return await self._ask(read)

    async def version(self, subject: str, version: int | None = None) -> RegistrySchema | None:
        """A version of a subject, or the latest; None if there is none. Raises as `schema`."""

        def read() -> RegistrySchema:
            found = _in_a_format(lambda form: self._client.get_version(subject, version or "latest", fmt=form))
            return self._read(found.schema_id, found.schema)

        return await self._ask(read)

    async def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema, which becomes the subject's latest version unless it has it.

        Raises:
            SchemaError: the registry refuses it: it is not compatible with earlier versions, or a right is missing.
            SourceError: the registry does not answer.
        """

        def register() -> int:
            try:
                return self._client.register_schema(subject, Schema(text, kind))
            except SchemaRegistryError as error:
                if error.http_status_code in _REFUSED:
                    raise SchemaError(f"the registry {self.url} refuses the schema of the rows: {error}") from None
                raise

        found = await self._ask(register)
        if found is None:
            raise SourceError(f"schema registry {self.url}: it registers no schema of subject {subject}")
        return found

    async def subjects(self, limit: int) -> tuple[list[Subject], int]:
        """The first subjects by name, and how many there are. Raises as `schema`."""

        def read() -> tuple[list[Subject], int]:
            names = sorted(self._client.get_subjects())
            return list(map(self._subject, names[:limit])), len(names)

        return await self._ask(read) or ([], 0)

    async def close(self) -> None:
        """Close the connections. The next question opens new ones."""
        client, self._client = self._client, SchemaRegistryClient(self._conf)
        await self._clock.run_in_thread(client.close)

    def _subject(self, name: str) -> Subject:
        latest: Any = self._client.get_latest_version(name)
        return Subject(name, latest.version, latest.schema_id, latest.schema.schema_type, self._compatibility(name))

    def _compatibility(self, subject: str) -> str:
        try:
            config = self._client.get_config(subject)
        except SchemaRegistryError as error:
            if error.http_status_code != HTTPStatus.NOT_FOUND:
                raise
            config = self._client.get_config()  # the subject has none of its own
        level = config.compatibility_level
        return "unknown" if level is None else str(level.value)

    def _read(self, schema_id: Any, schema: Any) -> RegistrySchema:
        references: dict[str, str] = {}
        self._collect(schema, references, [])
        return RegistrySchema(schema_id, schema.schema_type or "AVRO", schema.schema_str or "", references)

    def _collect(self, schema: Any, references: dict[str, str], under: list[str]) -> None:
        """Add the texts of the schemas to which a schema refers. `under`: names that were asked for."""
        for reference in schema.references or ():
            if reference.name not in references:
                if len(under) >= MOST_REFERENCES or reference.name in under:
                    raise DecodeError(f"it has more than {MOST_REFERENCES} references, or they lead back to it")
                under.append(reference.name)
                found = self._referenced(reference.subject, reference.version)
                self._collect(found, references, under)
                references[reference.name] = found.schema_str

    def _referenced(self, subject: Any, version: Any) -> Any:
        return _in_a_format(lambda form: self._client.get_version(subject, version, True, form)).schema

    async def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return await self._clock.run_in_thread(question, abandon=True)
        except (DecodeError, SchemaError):
            raise
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                return None
            raise SourceError(f"schema registry {self.url}: {error}") from None
        except Exception as error:  # noqa: BLE001  # whatever its HTTP library raises
            raise SourceError(f"schema registry {self.url}: {format_error(error)}") from None


def _in_a_format(ask: Callable[[str | None], T]) -> T:
    """The answer in the serialized format; as text if the registry fails at that, as Karapace does at references."""
    try:
        return ask(_SERIALIZED)
    except SchemaRegistryError as error:
        if error.http_status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
    return ask(None)
