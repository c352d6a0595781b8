"""Why a value is not valid by a JSON Schema, found in time and memory that grow with the value only.

jsonschema-rs explains a failed `anyOf` or `oneOf` with every error of every branch. Where a schema refers to itself
within them, these double with each level: a value of 500 bytes took the memory of the host. So reasons come from a
second validator, whose schema asks of each union only if it is valid, which takes no such time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jsonschema_rs

_UNIONS = ("anyOf", "oneOf")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OLD = ("/draft-03/", "/draft-04/", "/draft-06/")
"""Drafts without `if`, and without keywords that depend on the properties that a union has seen."""
_SHOWN = 1_000
"""Characters of a reason. It quotes the part of the value that is wrong, which may be all of it."""

Build = Callable[[Any, dict[str, Any]], Any]
"""Makes a validator of a schema and its references."""


class Reasons:
    """Finds the first place where a value is not valid.

    Args:
        build: makes the second validator.
        schema, references: parsed, as the first validator has them.
    """

    def __init__(self, build: Build, schema: Any, references: dict[str, Any]) -> None:
        self._build = build
        self._given = schema, references

    def of(self, value: Any) -> str:
        """The place and the reason; empty if they cannot be told."""
        try:
            if self._validator is not None:
                self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            where = "".join(f"[{step!r}]" for step in error.instance_path)
            return f"{f', at {where}' if where else ''}: {_message(error)}"[:_SHOWN]
        return ""

    @cached_property
    def _validator(self) -> Any:
        """Made for the first value that is not valid; None: a `$ref` leads into a union, whose place is another now."""
        schema, references = self._given
        try:
            return self._build(_shallow(schema), {name: _shallow(other) for name, other in references.items()})
        except (jsonschema_rs.ReferencingError, ValueError):
            return None


def _message(error: Any) -> str:
    if len(steps := list(error.schema_path)) > 4 and steps[-5::2] == ["allOf", "allOf", steps[-1]]:
        return "it fits no schema of 'anyOf', or not exactly one of 'oneOf'"
    return str(error.message)


def _shallow(schema: Any) -> Any:
    """The schema with conditions in place of unions and references: a condition has no errors of its own, and a
    reference is followed only to a part that is not valid."""
    draft = str(schema.get("$schema")) if isinstance(schema, dict) else ""
    return _conditional(schema, any(old in draft for old in _OLD), alone="/draft-07/" in draft)


def _conditional(schema: Any, old: bool, alone: bool) -> Any:
    """alone: words beside a `$ref` mean nothing."""
    if isinstance(schema, list):
        return [_conditional(part, old, alone) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: _conditional(part, old, alone) for word, part in schema.items()}
    if alone and isinstance(made.get("$ref"), str):
        made = {word: part for word, part in made.items() if word in ("$ref", "definitions", "$defs")}
    unions = [{word: made.pop(word)} for word in _UNIONS if isinstance(made.get(word), list)]
    conditions = [{"not": {"not": union}} if old else {"if": union, "else": False} for union in unions]
    if not old:
        references = [{word: made.pop(word)} for word in _REFERENCES if isinstance(made.get(word), str)]
        conditions += [{"if": reference, "else": reference} for reference in references]
    return {**made, "allOf": [*made.get("allOf", []), {"allOf": conditions}]} if conditions else made
