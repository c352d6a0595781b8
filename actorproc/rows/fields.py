"""Converts objects with named fields (msgspec structs, dataclasses, pydantic models) to dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import msgspec
from pydantic import BaseModel

from actorproc.records import Record


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


ObjectWithFields = msgspec.Struct | BaseModel | _Dataclass


def fields_of(value: object) -> dict[str, Any] | None:
    """The fields of a Struct, dataclass or pydantic model by their Python names; None for other values."""
    if isinstance(value, Mapping):
        return None
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, msgspec.Struct) and not isinstance(value, Record):  # a record is not a row
        fields = {name: getattr(value, name, None) for name in value.__struct_fields__}
        return {name: field for name, field in fields.items() if field is not msgspec.UNSET}
    if not hasattr(type(value), "__dataclass_fields__"):  # the class itself is not an instance
        return None
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
