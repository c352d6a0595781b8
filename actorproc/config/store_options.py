"""Settings that stores declare and the core does not know, such as `s3_region`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic.fields import FieldInfo

from actorproc import plugins


def store_options(names: Iterable[str]) -> dict[str, FieldInfo]:
    """All options of the stores to which the names belong: each begins with the scheme of its store, and `_`.

    Other stores are not imported.

    Raises:
        UsageError: such a store cannot be imported.
    """
    given = [name.lower() for name in names]
    found: dict[str, FieldInfo] = {}
    for scheme in plugins.names(plugins.STORES):
        if any(name.startswith(re.sub(r"[^a-z0-9]", "_", scheme) + "_") for name in given):
            options = getattr(plugins.load(plugins.STORES, scheme), "options", None)
            found |= getattr(options, "model_fields", {})
    return found
