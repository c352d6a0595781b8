"""A handler's own options: filled from keywords, `ACTORPROC_OPTION_<NAME>` and the `[options]` table of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from actorproc.config.environment import TYPO, did_you_mean, read_config
from actorproc.config.redaction import OBJECTS
from actorproc.config.settings import Settings, explain
from actorproc.errors import SettingsError
from actorproc.handler.base import PartitionHandler

PREFIX = "ACTORPROC_OPTION_"
_GIVE = "; give it with --option {0}=..., options={{'{0}': ...}} or in [options] of actorproc.toml"
_LISTS = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type", "deque_type", "sequence_str"})
"""Errors of pydantic's that say: this is no list."""


def load_options(
    handler: type[PartitionHandler],
    given: Mapping[str, object] | None = None,
    config: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    alone: bool = False,
) -> BaseModel:
    """The handler's `Options`. What is given beats the environment, the environment beats the file.

    Text for a field that takes none, but a list or an object, is JSON. (The file has lists and tables of its own.)

    Args:
        alone: only what is `given` counts.

    Raises:
        SettingsError: names each option that is unknown or wrong, its value, and what is allowed.
    """
    if not isinstance(given, Mapping | None):
        raise SettingsError(f"options = {given!r:.80}: values by name, such as {{'name': value}}")
    model = handler.Options
    fields = model.model_fields
    values: dict[str, Any] = {}
    outside: dict[str, object] = {}  # what does not come from the file
    where: dict[str, str] = {}
    if not alone:
        values |= read_config(config).get("options", {})
        where = dict.fromkeys(values, f"{config or 'actorproc.toml'}: ")
        found = _from(environment, handler)
        where |= {name: f"{PREFIX}{name.upper()} in the environment: " for name in found}
        outside |= found
    outside |= given or {}
    values |= outside
    where |= dict.fromkeys(given or {}, "")
    if unknown := sorted(values.keys() - fields.keys()):
        file = f" (in [options] of {config or 'actorproc.toml'})"
        named = ", ".join(name if name in (given or {}) else f"{name}{file}" for name in unknown)
        raise _no_option(handler, named, unknown[0], in_file=given is None or unknown[0] not in given)
    texts = {name: text for name, text in outside.items() if isinstance(text, str)}
    try:
        return model.model_validate(values, by_alias=False, by_name=True)
    except ValidationError as error:
        values |= _from_json(error, texts)
    try:
        return model.model_validate(values, by_alias=False, by_name=True)
    except ValidationError as error:
        hints = _json_hints(error, {name: values[name] for name in texts})
        raise SettingsError(f"options of {handler.__name__}:\n{explain(error, model, _GIVE, where, hints)}") from None


def _from_json(error: ValidationError, texts: Mapping[str, str]) -> dict[str, object]:
    """The texts that are refused because they are no list or object, and are one in JSON, as what they are."""
    found: dict[str, object] = {}
    for name in {place[0] for place in _json_hints(error, texts)}:
        try:
            value = json.loads(texts[str(name)])
        except (ValueError, RecursionError):
            continue  # told as what it is: no list, no object
        if isinstance(value, (list, dict)):
            found[str(name)] = value
    return found


def _json_hints(error: ValidationError, values: Mapping[str, object]) -> dict[tuple[int | str, ...], str]:
    """How those of the values are written that are refused as no list or object, by their place in the model."""
    hints: dict[tuple[int | str, ...], str] = {}
    for item in error.errors():
        name = str(item["loc"][0]) if item["loc"] else ""
        if name not in values or item["input"] != values[name]:
            continue  # or something within it
        if item["type"] in _LISTS:
            hints[item["loc"]] = f'; write a list as JSON, such as {name}=["a","b"]'
        elif item["type"] in OBJECTS:
            hints[item["loc"]] = f'; write an object as JSON, such as {name}={{"a":1}}'
    return hints


def _from(environment: Mapping[str, str], handler: type[PartitionHandler]) -> dict[str, str]:
    """A variable that is nearly an option is a typing error; others may be for another handler."""
    fields = handler.Options.model_fields
    found = {}
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX):
            continue
        field = next((field for field in fields if field.lower() == name), None)
        if field is not None:
            found[field] = value
        elif did_you_mean(name, fields, TYPO):
            raise _no_option(handler, f"{name} ({variable} in the environment)", name)
    return found


def _no_option(handler: type[PartitionHandler], named: str, first: str, *, in_file: bool = False) -> SettingsError:
    fields = handler.Options.model_fields
    hint = did_you_mean(first, fields, TYPO)
    if not hint and first in Settings.model_fields:
        hint = f"; {first} is a setting: " + ("it stands above [options]" if in_file else f"--set {first}=...")
    elif not hint and in_file:
        hint = f"; another handler's? Give this one a file of its own: --config {handler.__name__.lower()}.toml"
    return SettingsError(f"{handler.__name__} has no option {named}; it has: {', '.join(fields) or 'none'}{hint}")
