"""What may be shown of a value that was refused: nothing that may be a secret."""

from __future__ import annotations

import re
from inspect import isclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel

_SECRET = re.compile(r"(?i)secret|pass|pwd|token|credential|private|api_?key|access_?key|dsn")

OBJECTS = frozenset(
    f"{kind}_type"
    for kind in ("dict", "ordered_dict", "counter", "mapping", "model", "model_attributes", "dataclass", "named_tuple")
)
"""Errors of pydantic's that say: this is no object."""


def may_show(model: type[BaseModel], place: tuple[int | str, ...], error: str, value: object) -> bool:
    """Whether the value that `error`, a type of pydantic's, found at `place` of the model may be told.

    An object may not, whatever it holds; nor may text that stands for one.
    """
    if isinstance(value, str) and (error in OBJECTS or "{" in value):
        return False
    return isinstance(value, (str, int, float)) and not _is_secret(model, place)


def kind_of(value: object) -> str:
    """What it is, where that may be told and the value may not; empty where only the value would tell."""
    return "a list" if isinstance(value, (list, tuple)) else "an object" if isinstance(value, dict) else ""


def _is_secret(model: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    """By its type (`SecretStr`), by `Field(repr=False)`, or by its name: rather one too many. So is what lies in a secret."""
    models = [model]
    for part in place:  # some are indexes, or branches of a union
        fields = [found.model_fields[str(part)] for found in models if str(part) in found.model_fields]
        if any(not field.repr or "Secret" in str(field.annotation) for field in fields):
            return True
        models += [inner for field in fields for inner in _models_in(field.annotation)]
    return any(_SECRET.search(str(part)) for part in place)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is None and isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
