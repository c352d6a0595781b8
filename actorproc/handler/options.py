"""Loads a handler's own options from keywords, `ACTORPROC_OPTION_<NAME>` variables and `[options]` of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from actorproc.config.loading import PREFIX, merge, read_config
from actorproc.config.validation import LIST_ERRORS, OBJECT_ERRORS, did_you_mean, explain
from actorproc.errors import SettingsError
from actorproc.handler.base import PartitionHandler

_HOW_TO_GIVE = "--option NAME=VALUE, ACTORPROC_OPTION_<NAME>, or NAME = VALUE below [options] in the file"


def load_options(
    handler: type[PartitionHandler],
    given: Mapping[str, object] | None = None,
    config: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    alone: bool = False,
) -> BaseModel:
    """The handler's `Options`. A value that is given beats the environment, which beats the file.

    Text for a list or object is parsed as JSON.

    Args:
        alone: neither file nor environment is read.

    Raises:
        SettingsError: names each unknown or wrong option, its value and the allowed values.
    """
    if not isinstance(given, Mapping | None):
        raise SettingsError(f"options = {given!r:.80}: values by name, such as {{'name': value}}")
    model = handler.Options
    values, origins = merge(
        model.model_fields, f"{PREFIX}OPTION_", config=config,
        file={} if alone else read_config(config).get("options", {}),
        environment={} if alone else environment, keywords=given or {},
    )  # fmt: skip
    if unknown := sorted(values.keys() - model.model_fields.keys()):
        known = f"{', '.join(model.model_fields) or 'none'}{did_you_mean(unknown[0], model.model_fields)}"
        raise SettingsError(
            f"{origins[unknown[0]]}{handler.__name__} has no option {', '.join(unknown)}; it has: {known}"
        )
    try:
        return _validated(model, values)
    except ValidationError as error:
        reasons = explain(error, model, origins)
        raise SettingsError(f"options of {handler.__name__} ({_HOW_TO_GIVE}):\n{reasons}") from None


def _validated(model: type[BaseModel], values: dict[str, Any]) -> BaseModel:
    try:
        return model.model_validate(values, by_alias=False, by_name=True)
    except ValidationError as error:
        if not (parsed := _parsed_as_json(error, values)):
            raise
    return model.model_validate(values | parsed, by_alias=False, by_name=True)


def _parsed_as_json(error: ValidationError, values: Mapping[str, Any]) -> dict[str, object]:
    """Lists and objects from texts that were refused because the field takes a list or an object."""
    parsed: dict[str, object] = {}
    for details in error.errors():
        name = str(details["loc"][0]) if details["loc"] else ""
        text = values.get(name)
        if details["type"] not in LIST_ERRORS | OBJECT_ERRORS or not isinstance(text, str) or details["input"] != text:
            continue
        try:
            value = orjson.loads(text)
        except ValueError:
            continue  # the error about the text is raised again
        if isinstance(value, list | dict):
            parsed[name] = value
    return parsed
