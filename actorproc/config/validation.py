"""Explains pydantic's errors about settings and options, without showing secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import isclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from actorproc.config.store_options import store_options

LIST_ERRORS = frozenset(
    f"{kind}_type" for kind in ("list", "tuple", "set", "frozen_set", "deque")
) | {"sequence_str"}  # fmt: skip
"""Error types of pydantic: the value is not a list."""

OBJECT_ERRORS = frozenset(
    f"{kind}_type"
    for kind in ("dict", "ordered_dict", "counter", "mapping", "model", "model_attributes", "dataclass", "named_tuple")
)
"""Error types of pydantic: the value is not an object."""

_CREDENTIALS_IN_URL = re.compile(r"://[^/]*@")
_SECRET = re.compile(r"(?i)secret|pass|pwd|token|credential|private|api_?key|access_?key|dsn")
_ELSEWHERE = (
    ". (Source, container and name are given on the command line; a handler's options with --option NAME=VALUE, or "
    "below [options] in the file)"
)


def has_credentials(url: str) -> bool:
    """Whether the URL contains a user name or a password. Then no message may show it."""
    return _CREDENTIALS_IN_URL.search(url) is not None


def without_credentials(url: str) -> str:
    """The URL as messages may show it."""
    return _CREDENTIALS_IN_URL.sub("://...@", url)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known name that is most like it, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_option(of: str, url: str, name: str, known: Iterable[str]) -> str:
    """The message about an option of a source or store (`of`) that it does not have. Names those that it has."""
    known = list(known)
    has = f"it has {', '.join(known)}" if known else "it has none"
    return f"{of} {without_credentials(url)}: there is no {of} option {name!r}{did_you_mean(name, known)} ({has})"


def explain(error: ValidationError, model: type[BaseModel], origins: Mapping[str, str]) -> str:
    """A line for each error: origin, field, value and the allowed values. A value that may be secret is left out.

    Args:
        origins: start of the line by field: the file or variable that the value came from.
    """
    return "\n".join(_line(details, model, origins) for details in error.errors())


def _line(details: Mapping[str, Any], model: type[BaseModel], origins: Mapping[str, str]) -> str:
    path, kind, value = details["loc"], details["type"], details["input"]
    message = details["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not path:  # several fields contradict each other
        return str(message)
    field, name = str(path[0]), ".".join(map(str, path))
    if kind == "missing":  # `value` is all that was given
        return f"{origins.get(field, '')}{name}: is missing"
    of_store: Iterable[str] = ()
    if kind == "extra_forbidden" and len(path) == 1:
        of_store = store_options([field])
        others = f" (the store has {', '.join(of_store)})" if of_store else _ELSEWHERE
        near = did_you_mean(field, [*of_store, *model.model_fields])
        message = f"there is no such setting{near}{'' if near and not of_store else others}"
    if isinstance(value, str) and kind in LIST_ERRORS | OBJECT_ERRORS:
        message += f"; write {'a list' if kind in LIST_ERRORS else 'an object'} as JSON"
    shown = f" = {value!r}" if not of_store and _may_show(model, path, kind, value) else ""
    return f"{origins.get(field, '')}{name}{shown}: {message}"


def _may_show(model: type[BaseModel], path: tuple[int | str, ...], kind: str, value: object) -> bool:
    """Objects are not shown, since they may hold secrets; nor is text that stands for an object."""
    if isinstance(value, str) and (kind in OBJECT_ERRORS or "{" in value or has_credentials(value)):
        return False
    return isinstance(value, str | int | float) and not _is_secret(model, path)


def is_secret(name: str, field: FieldInfo) -> bool:
    """Secret by type (`SecretStr`), by `Field(repr=False)`, or by name."""
    return not field.repr or "Secret" in str(field.annotation) or _SECRET.search(name) is not None


def _is_secret(model: type[BaseModel], path: tuple[int | str, ...]) -> bool:
    """As `is_secret`, or inside of a secret field."""
    models = [model]
    for part in path:  # some parts are indexes, or branches of a union
        fields = [found.model_fields[str(part)] for found in models if str(part) in found.model_fields]
        if any(is_secret(str(part), field) for field in fields):
            return True
        models += [inner for field in fields for inner in _models_in(field.annotation)]
    return any(_SECRET.search(str(part)) for part in path)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is None and isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]
