"""Decoders: how the values of records become Python objects or columns. `open_decoder` makes one from settings."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.limits import Limits
from actorproc.config.secrets import with_secrets
from actorproc.config.settings import Settings
from actorproc.errors import SchemaError, SettingsError
from actorproc.handler.decoder import Decoder
from actorproc.rows.schema import parse_schema
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.requirements import how_to_install

if TYPE_CHECKING:
    from actorproc.formats.registry.client import SchemaRegistry

__all__ = ["FROM_REGISTRY", "JsonDecoder", "open_decoder", "open_registry", "subject_of"]

FROM_REGISTRY = "registry:"
"""Begins a `decode_schema` or `output_schema` that names a subject of the schema registry."""

_REGISTRY_FORMATS = {
    "avro": ("avro_format", "AvroFormat"),
    "protobuf": ("protobuf_format", "ProtobufFormat"),
    "json-schema": ("json_schema_format", "JsonSchemaFormat"),
}


def open_decoder(settings: Settings, *, clock: Clock = SYSTEM) -> Decoder:
    """The decoder that the settings name. Nothing is fetched yet.

    Raises:
        SettingsError: settings contradict each other, a schema is wrong, or an extra is not installed.
    """
    if settings.decode in _REGISTRY_FORMATS and settings.schema_registry is not None:
        return _registry_decoder(settings, clock)
    try:
        return _plain_decoder(settings)
    except (ValueError, OSError, SchemaError) as error:
        raise SettingsError(f"decode_schema = {settings.decode_schema!r}: {error}") from None


def subject_of(declared: object) -> str | None:
    """The subject that an `output_schema` names; None if it declares the columns itself."""
    is_named = isinstance(declared, str) and declared.startswith(FROM_REGISTRY)
    return str(declared).removeprefix(FROM_REGISTRY) if is_named else None


def open_registry(settings: Settings, *, clock: Clock = SYSTEM) -> SchemaRegistry:
    """The schema registry that the settings name.

    Raises:
        SettingsError: the client refuses the URL or an option, or is not installed.
    """
    if settings.schema_registry is None:
        raise SettingsError("schema_registry is not set")
    try:
        registry = import_module("actorproc.formats.registry.client").SchemaRegistry
    except ImportError as error:
        raise SettingsError(f"schema_registry: {error}: {how_to_install('avro')}, or that of another format") from None
    options = with_secrets("schema registry option", settings.schema_registry_options)
    return registry(  # type: ignore[no-any-return]
        settings.schema_registry, options, timeout=settings.store_timeout, clock=clock
    )


def _registry_decoder(settings: Settings, clock: Clock) -> Decoder:
    reader = settings.decode_schema
    if reader is not None and not (settings.decode == "avro" and reader.startswith(FROM_REGISTRY)):
        raise SettingsError(
            f"decode_schema = {reader!r}: with schema_registry each value names its schema; only decode = avro takes "
            "another one to read into, registry:SUBJECT"
        )
    registry = open_registry(settings, clock=clock)
    registry_decoder = _load(settings, "registry_decoder", "RegistryDecoder")
    registry_format = _load(settings, *_REGISTRY_FORMATS[settings.decode])
    subject = None if reader is None else reader.removeprefix(FROM_REGISTRY)
    return registry_decoder(registry, registry_format(_limits(settings)), subject, clock=clock)  # type: ignore[no-any-return]


def _plain_decoder(settings: Settings) -> Decoder:
    """A decoder of values without a schema id."""
    decode, schema = settings.decode, settings.decode_schema
    if decode in ("json", "text", "arrow") and schema is not None:
        raise SettingsError(f"decode_schema = {schema!r}: decode = {decode} takes none")
    if decode == "json":
        return JsonDecoder()
    if decode == "text":
        return _load(settings, "text", "TextDecoder")()  # type: ignore[no-any-return]
    if decode == "arrow":
        return _load(settings, "arrow", "ArrowDecoder")(_limits(settings))  # type: ignore[no-any-return]
    if schema is None:
        registry = " or schema_registry" if decode in _REGISTRY_FORMATS else ""
        raise SettingsError(f"decode = {decode} needs decode_schema{registry}")
    if decode == "csv":
        return _load(settings, "csv", "CsvDecoder")(parse_schema(schema))  # type: ignore[no-any-return]
    if decode == "protobuf":
        return _load(settings, "protobuf", "ProtobufDecoder")(_message(schema), _limits(settings))  # type: ignore[no-any-return]
    try:
        text = Path(schema).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"decode_schema = {schema!r}: the file cannot be read: {error}") from None
    if decode == "avro":
        parsed = _load(settings, "avro_schema", "parsed_avro")(text)
        return _load(settings, "avro", "AvroDecoder")(parsed, limits=_limits(settings))  # type: ignore[no-any-return]
    return _load(settings, "json_schema", "JsonSchemaDecoder")(text)  # type: ignore[no-any-return]


def _limits(settings: Settings) -> Limits:
    return Limits(settings.max_value_rows, settings.max_value_bytes)


def _message(name: str) -> Any:
    """The descriptor of a generated class, `MODULE:MESSAGE`."""
    module, _, message = name.partition(":")
    try:
        return getattr(import_module(module), message).DESCRIPTOR
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"decode_schema = {name!r}: {error}; give a class that protoc generated, such as flights_pb2:Flight"
        ) from None


def _load(settings: Settings, module: str, name: str) -> Any:
    """A part of a format, whose libraries may not be installed."""
    try:
        return getattr(import_module(f"actorproc.codecs.{module}"), name)
    except ImportError as error:
        raise SettingsError(f"decode = {settings.decode}: {error}: {how_to_install(settings.decode)}") from None
