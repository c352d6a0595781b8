"""Validates values with pydantic models, so that a value that does not fit takes little time and memory.

pydantic reports all errors, each of some 450 bytes. It tries each member of a union: where models refer to themselves
within one, that doubles with each level, for values that fit, too. A value of 500 bytes took the memory of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaValidator

from actorproc.codecs.json_limits import object_levels
from actorproc.errors import DecodeError

MOST_TRIES = 2**18
"""Objects times tries of each: about a second, and 200 MB of errors if models have few fields."""
_MOST_ERRORS = 8_192
"""Errors whose text is made."""
_SEQUENCES = {"list", "tuple", "set", "frozenset"}


class ModelValues:
    """Validates JSON or Python objects, up to the first wrong item of each list.

    Each method raises ValueError: the value does not fit, or would take too long.
    """

    def __init__(self, kind: type[BaseModel]) -> None:
        self._kind = kind

    def from_json(self, value: bytes) -> Any:
        if self._members > 1:
            self._check(*object_levels(value))
        try:
            return self._validator.validate_json(value)
        except ValidationError as error:
            raise _brief(error) from None

    def from_object(self, loaded: Any) -> Any:
        if self._members > 1:
            self._check(*_levels(loaded))
        try:
            return self._validator.validate_python(loaded)
        except ValidationError as error:
            raise _brief(error) from None

    def _check(self, objects: int, levels: int) -> None:
        if objects * self._members**levels > MOST_TRIES:
            raise DecodeError(
                f"{objects:,} objects, nested {levels} deep, are too many for {self._kind.__name__}: unions of models "
                f"that contain themselves have up to {self._members} members, and pydantic tries each at each level. "
                "Give these unions a discriminator"
            )

    @cached_property
    def _validator(self) -> SchemaValidator:  # not before the first value, since models may be completed late
        return SchemaValidator(_fail_fast(self._schema), _use_prebuilt=False)

    @cached_property
    def _members(self) -> int:
        return recursive_members(self._schema)

    @cached_property
    def _schema(self) -> Any:
        self._kind.model_rebuild()
        return self._kind.__pydantic_core_schema__


def _brief(error: ValidationError) -> ValueError:
    if error.error_count() <= _MOST_ERRORS:
        return error
    return DecodeError(f"{error.error_count():,} validation errors for {error.title}")


def recursive_members(schema: Any) -> int:
    """The most members of a union that may contain that union again. One with a discriminator has a single try."""
    definitions = {part["ref"]: part for part in schema.get("definitions", ())}
    direct = {ref: _references(part) for ref, part in definitions.items()}

    def reached(todo: set[str]) -> set[str]:
        found: set[str] = set()
        while todo:
            found |= todo
            todo = set().union(*(direct[ref] for ref in todo)) - found
        return found

    most = 1
    for ref, definition in definitions.items():
        for part in _dicts(definition):
            if part.get("type") == "union":
                most = max(most, sum(ref in reached(_references(choice)) for choice in part["choices"]))
    return most


def _references(part: Any) -> set[str]:
    return {found["schema_ref"] for found in _dicts(part) if found.get("type") == "definition-ref"}


def _dicts(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list | tuple):
        for inner in part:
            yield from _dicts(inner)


def _fail_fast(schema: Any) -> Any:
    """The schema with lists that end at the first item that does not fit."""
    if isinstance(schema, dict):
        made = {word: _fail_fast(part) for word, part in schema.items()}
        return {**made, "fail_fast": True} if made.get("type") in _SEQUENCES else made
    if type(schema) in (list, tuple):
        return type(schema)(map(_fail_fast, schema))
    return schema


def _levels(loaded: Any) -> tuple[int, int]:
    """Objects in a value of plain Python, and how deep they are nested."""
    objects = levels = 0
    row = [loaded]
    while row:
        dicts = [part for part in row if isinstance(part, dict)]
        objects, levels = objects + len(dicts), levels + bool(dicts)
        inner = [part.values() for part in dicts] + [part for part in row if isinstance(part, list | tuple)]
        row = [part for parts in inner for part in parts if isinstance(part, dict | list | tuple)]
    return objects, levels
