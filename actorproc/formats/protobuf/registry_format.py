"""Protobuf schemas of a registry: decoders of their values, and their columns."""

from __future__ import annotations

import pyarrow as pa

from actorproc.formats.protobuf.decoder import ProtobufDecoder, ProtobufFile
from actorproc.formats.protobuf.files import parsed_protobuf
from actorproc.formats.registry.client import RegistrySchema
from actorproc.formats.registry.decoder import RegistryFormat
from actorproc.handler.decoder import Decoder
from actorproc.rows.output_schema import nullable


class ProtobufFormat(RegistryFormat):
    """Protobuf. The columns are those of the first message type of the file."""

    kind = "PROTOBUF"

    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        return ProtobufFile(parsed_protobuf(schema.text, schema.references), self.limits)

    def columns(self, schema: RegistrySchema) -> pa.Schema:
        file = ProtobufFile(parsed_protobuf(schema.text, schema.references))
        return pa.schema(list(map(nullable, ProtobufDecoder(file.message([0])).schema)))
