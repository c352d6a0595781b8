"""Formats of values that need a library of their own: Avro, Protobuf, JSON Schema, and the schema registry."""
