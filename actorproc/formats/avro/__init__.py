"""Avro: values to Python objects and columns."""
