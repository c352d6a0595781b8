"""Opens the encoders of formats with a schema registry, for sinks."""

from __future__ import annotations

from actorproc.errors import SettingsError
from actorproc.runtime.clock import Clock
from actorproc.sinks.row_encoder import EncoderOptions, RowEncoder

_TIMEOUT = 15.0  # seconds for a request to the registry, unless its options say otherwise


def open_avro(options: EncoderOptions, target: str, clock: Clock) -> RowEncoder:
    """The encoder of `encode = avro`. Raises as `EncoderFactory` says."""
    if options.schema_registry is None:
        raise SettingsError("encode = avro needs schema_registry, the URL of a schema registry")
    from actorproc.formats.avro.encoder import AvroEncoder
    from actorproc.formats.registry.client import SchemaRegistry

    registry = SchemaRegistry(options.schema_registry, options.schema_registry_options, timeout=_TIMEOUT, clock=clock)
    return AvroEncoder(registry, options.subject or f"{target}-value", target, register=options.register_schema)
