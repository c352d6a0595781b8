"""Objects with named fields as dicts: what typed handlers hold, and return as rows or as values in them."""

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
    """The fields of a Struct, dataclass or pydantic model, by the names that they have in Python; None: it is none of these."""
    if isinstance(value, Mapping):
        return None
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, msgspec.Struct) and not isinstance(value, Record):  # which no row is meant to be
        fields = {name: getattr(value, name, None) for name in value.__struct_fields__}
        return {name: field for name, field in fields.items() if field is not msgspec.UNSET}
    if not hasattr(type(value), "__dataclass_fields__"):  # a dataclass itself is none of its instances
        return None
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
