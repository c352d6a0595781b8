"""Finds the handler, source or function that MODULE:NAME names."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from actorproc.errors import HandlerDefinitionError, UsageError
from actorproc.handler.hooks import Hooks
from actorproc.runtime.logger import set_up_now
from actorproc.runtime.user_code import user_code
from actorproc.sources.protocol import Source

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def names_object(spec: str) -> bool:
    """Whether it is MODULE:NAME, and so no URL."""
    return _OBJECT.fullmatch(spec) is not None


def load_handler(spec: str) -> Any:
    """The handler class, for `checked_handler` or `Processor`. Modules are also looked for in the working directory.

    Raises:
        HandlerDefinitionError: there is no such module or class, or its own code fails.
    """
    return _load(f"handler {spec!r}", spec, "CLASS", "app:Delays for class Delays of app.py")


def load_function(spec: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names; modules are also looked for in the working directory.

    Raises:
        HandlerDefinitionError: there is no such module or function, or its own code fails.
    """
    found = _load(f"function {spec!r}", spec, "FUNCTION", "app:delays for function delays of app.py")
    if not callable(found) or inspect.isclass(found):
        raise HandlerDefinitionError(f"{spec} is {found!r:.200}, no function")
    return found


def load_hooks(spec: str) -> Hooks:
    """The hooks that MODULE:NAME names: a `Hooks`, or a class or function that makes one.

    Raises:
        HandlerDefinitionError: there is no such module or name, its own code fails, or it makes something else.
    """
    found = _load(f"hooks {spec!r}", spec, "CLASS", "app:Alerts for class Alerts of app.py")
    with user_code(f"making the hooks {spec!r}", HandlerDefinitionError):
        made = found() if callable(found) and not isinstance(found, Hooks) else found
    if not isinstance(made, Hooks):
        raise HandlerDefinitionError(f"hooks {spec!r} is {made!r:.200}; it must be, or make, an actorproc.Hooks")
    return made


def load_source(spec: str) -> str | Source:
    """The source that MODULE:NAME names: a `Source`, or a class or function that makes one. Anything else is a URL.

    Raises:
        HandlerDefinitionError: there is no such module or name, its own code fails, or it is no source.
        UsageError: it is a file.
    """
    if not names_object(spec):
        path = Path(spec.removeprefix("file://"))
        if path.is_file():
            raise UsageError(
                f"source {spec!r} is a file, not a log. Append its lines to a log, and give that: "
                f"actorproc produce --log events --partitions 8 {shlex.quote(str(path))}"
            )
        return spec
    found = _load(f"source {spec!r}", spec, "CLASS", "")
    with user_code(f"making the source {spec!r}", HandlerDefinitionError):
        made = found() if callable(found) and not isinstance(found, Source) else found
    if not isinstance(made, Source):
        kind = type(made)
        raise HandlerDefinitionError(
            f"source {spec!r} is of class {kind.__module__}.{kind.__qualname__}; "
            "it must be, or make, an actorproc.Source"
        )
    return made


def _load(subject: str, spec: str, kind: str, example: str) -> object:
    """The object that MODULE:NAME names. `kind` is the kind of the object, for messages."""
    name, _, path = spec.partition(":")
    if name.endswith(".py") or "/" in name:
        example = f"{name.removesuffix('.py').strip('./').removeprefix('src/').replace('/', '.')}:{path or kind}"
    elif name and path:
        return _attribute(_import(name), path)
    raise HandlerDefinitionError(f"{subject}: write MODULE:{kind}, such as {example}")


def _attribute(imported: ModuleType, path: str) -> object:
    found: object = imported
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            own = [n for n, value in vars(found).items() if getattr(value, "__module__", None) == imported.__name__]
            near = get_close_matches(attribute, own, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(own)) or 'nothing of its own'}"
            file = getattr(imported, "__file__", None)  # the module may come from an unexpected file
            module = f"module {imported.__name__}{f' ({file})' if file else ''}"
            raise HandlerDefinitionError(f"{module} has no {path!r}; {hint}")
        found = getattr(found, attribute)
    return found


def _import(name: str) -> ModuleType:
    set_up_now()
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with user_code(f"importing {name}", HandlerDefinitionError):
            return importlib.import_module(name)
    except HandlerDefinitionError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            where = f"{folder} or on the Python path"
            raise HandlerDefinitionError(f"there is no module {missing.name!r} in {where}") from None
        raise
