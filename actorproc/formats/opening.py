"""Opens the decoders of Avro, Protobuf and JSON Schema, with or without a schema registry.

The libraries of a format are imported when its decoder is opened: they are extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actorproc.codecs import FROM_REGISTRY
from actorproc.codecs.opening import limits_of, schema_file, schema_of
from actorproc.config.options import with_secrets
from actorproc.config.settings import Settings
from actorproc.errors import SettingsError
from actorproc.handler.decoder import Decoder
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.requirements import how_to_install

if TYPE_CHECKING:
    from actorproc.formats.registry.client import SchemaRegistry
    from actorproc.formats.registry.decoder import RegistryFormat

_INSTEAD = " or schema_registry"


def open_avro(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = avro`. Raises as `DecoderFactory` says."""
    if settings.schema_registry is not None:
        from actorproc.formats.avro.registry_format import AvroFormat

        return _registry_decoder(settings, AvroFormat, clock)
    from actorproc.formats.avro.decoder import AvroDecoder
    from actorproc.formats.avro.schema import parsed_avro

    return AvroDecoder(parsed_avro(schema_file(settings, _INSTEAD)), limits=limits_of(settings))


def open_protobuf(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = protobuf`. Raises as `DecoderFactory` says."""
    if settings.schema_registry is not None:
        from actorproc.formats.protobuf.registry_format import ProtobufFormat

        return _registry_decoder(settings, ProtobufFormat, clock)
    from actorproc.formats.protobuf.decoder import ProtobufDecoder

    return ProtobufDecoder(_message(schema_of(settings, _INSTEAD)), limits_of(settings))


def open_json_schema(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = json-schema`. Raises as `DecoderFactory` says."""
    if settings.schema_registry is not None:
        from actorproc.formats.json_schema.registry_format import JsonSchemaFormat

        return _registry_decoder(settings, JsonSchemaFormat, clock)
    from actorproc.formats.json_schema.decoder import JsonSchemaDecoder

    return JsonSchemaDecoder(schema_file(settings, _INSTEAD))


def open_registry(settings: Settings, *, clock: Clock = SYSTEM) -> SchemaRegistry:
    """The schema registry that the settings name.

    Raises:
        SettingsError: the client refuses the URL or an option, or is not installed.
    """
    if settings.schema_registry is None:
        raise SettingsError("schema_registry is not set")
    try:
        from actorproc.formats.registry.client import SchemaRegistry
    except ImportError as error:
        raise SettingsError(f"schema_registry: {error}: {how_to_install('avro')}, or that of another format") from None
    options = with_secrets("schema registry option", settings.schema_registry_options)
    return SchemaRegistry(settings.schema_registry, options, timeout=settings.store_timeout, clock=clock)


def _registry_decoder(settings: Settings, kind: type[RegistryFormat], clock: Clock) -> Decoder:
    reader = settings.decode_schema
    if reader is not None and not (settings.decode == "avro" and reader.startswith(FROM_REGISTRY)):
        raise SettingsError(
            f"decode_schema = {reader!r}: with schema_registry each value names its schema; only decode = avro takes "
            "another one to read into, registry:SUBJECT"
        )
    from actorproc.formats.registry.decoder import RegistryDecoder

    registry = open_registry(settings, clock=clock)
    subject = None if reader is None else reader.removeprefix(FROM_REGISTRY)
    return RegistryDecoder(registry, kind(limits_of(settings)), subject, clock=clock)


def _message(name: str) -> Any:
    """The descriptor of a generated class, `MODULE:MESSAGE`."""
    module, _, message = name.partition(":")
    try:
        return getattr(import_module(module), message).DESCRIPTOR
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"decode_schema = {name!r}: {error}; give a class that protoc generated, such as flights_pb2:Flight"
        ) from None
