"""Options of a source, from `source_options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from actorproc.config.secrets import with_secrets
from actorproc.config.validation import explain
from actorproc.errors import UsageError

T = TypeVar("T", bound=BaseModel)


def parse_options(url: str, kind: type[T], given: Mapping[str, Any], **defaults: Any) -> T:
    """The options as they are now: files that `@PATH` names may have changed since, as a rotated key does.

    Args:
        url: of the source, for the message.
        defaults: of options that are not given.

    Raises:
        UsageError: one is wrong, or its file cannot be read.
    """
    options = defaults | with_secrets("source option", given)
    try:
        return kind(**options)
    except ValidationError as error:
        origins = dict.fromkeys(options, f"source {url}: source option ")
        raise UsageError(explain(error, kind, origins)) from None
