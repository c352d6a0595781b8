"""Protobuf: values to Python objects and columns."""
