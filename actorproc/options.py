"""A handler's own options: filled from keywords, `ACTORPROC_OPTION_<NAME>` and the `[options]` table of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from actorproc.errors import SettingsError
from actorproc.handler import PartitionHandler
from actorproc.settings import explain, read_config

PREFIX = "ACTORPROC_OPTION_"
_GIVE = "; give it with --option {0}=..., options={{'{0}': ...}} or in [options] of actorproc.toml"


def load_options(
    handler: type[PartitionHandler],
    given: Mapping[str, object] | None = None,
    config: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> BaseModel:
    """The handler's `Options`. What is given beats the environment, the environment beats the file.

    Raises:
        SettingsError: names each option that is unknown or wrong, its value, and what is allowed.
    """
    model = handler.Options
    fields = model.model_fields
    table = read_config(config).get("options", {})
    values: dict[str, Any] = {**table}
    values |= {name: environment[PREFIX + name.upper()] for name in fields if PREFIX + name.upper() in environment}
    values |= given or {}
    if unknown := sorted(values.keys() - fields.keys()):
        file = f" (in [options] of {config or 'actorproc.toml'})"
        named = ", ".join(name if name in (given or {}) else f"{name}{file}" for name in unknown)
        raise SettingsError(f"{handler.__name__} has no option {named}; it has: {', '.join(fields) or 'none'}")
    try:
        return model(**values)
    except ValidationError as error:
        raise SettingsError(f"options of {handler.__name__}:\n{explain(error, model, _GIVE)}") from None
