"""A handler's own options: filled from keywords, `ACTORPROC_OPTION_<NAME>` and the `[options]` table of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from actorproc.errors import SettingsError
from actorproc.handler import PartitionHandler
from actorproc.settings import TYPO, Settings, did_you_mean, explain, read_config

PREFIX = "ACTORPROC_OPTION_"
_GIVE = "; give it with --option {0}=..., options={{'{0}': ...}} or in [options] of actorproc.toml"


def load_options(
    handler: type[PartitionHandler],
    given: Mapping[str, object] | None = None,
    config: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    alone: bool = False,
) -> BaseModel:
    """The handler's `Options`. What is given beats the environment, the environment beats the file.

    Args:
        alone: only what is `given` counts.

    Raises:
        SettingsError: names each option that is unknown or wrong, its value, and what is allowed.
    """
    model = handler.Options
    fields = model.model_fields
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    if not alone:
        values |= read_config(config).get("options", {})
        where = dict.fromkeys(values, f"{config or 'actorproc.toml'}: ")
        found = _from(environment, handler)
        where |= {name: f"{PREFIX}{name.upper()} in the environment: " for name in found}
        values |= found
    values |= given or {}
    where |= dict.fromkeys(given or {}, "")
    if unknown := sorted(values.keys() - fields.keys()):
        file = f" (in [options] of {config or 'actorproc.toml'})"
        named = ", ".join(name if name in (given or {}) else f"{name}{file}" for name in unknown)
        raise _no_option(handler, named, unknown[0], in_file=given is None or unknown[0] not in given)
    try:
        return model(**values)
    except ValidationError as error:
        raise SettingsError(f"options of {handler.__name__}:\n{explain(error, model, _GIVE, where)}") from None


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
