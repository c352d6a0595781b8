"""Finds the handler, source or function that MODULE:NAME names, and says clearly why it cannot."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from actorproc.errors import HandlerDefinitionError, HandlerError, UsageError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.runtime.user_code import user_code
from actorproc.sources.protocol import Source

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NOT_THEIRS = {"actorproc", "importlib", "abc"}  # modules through which their code comes to raise
_FRAMES = 3  # of the user's traceback that are shown


def load_handler(spec: str) -> type[PartitionHandler]:
    """The handler class; modules are also looked for in the working directory.

    Raises:
        HandlerDefinitionError: there is no such module or class, its own code fails, or it is no handler.
    """
    if not all(spec.partition(":")):
        example = _with_colon(spec, "CLASS") or "app:Delays for class Delays of app.py"
        raise HandlerDefinitionError(f"handler {spec!r}: write MODULE:CLASS, such as {example}")
    return checked_handler(_load("handler", spec, PartitionHandler))


def names_object(spec: str) -> bool:
    """Whether it is MODULE:NAME, and so no URL."""
    return _OBJECT.fullmatch(spec) is not None


def load_source(spec: str) -> str | Source:
    """The source that MODULE:NAME names: a `Source`, or a class or function that makes one. Anything else is a URL.

    Raises:
        HandlerDefinitionError: there is no such module or name, its own code fails, or it is no source.
        UsageError: it is a file.
    """
    if not names_object(spec):
        path = Path(spec.removeprefix("file://"))
        module = path if path.suffix == ".py" else path.parent / f"{path.name}.py"
        if not path.is_dir() and module.is_file():
            raise UsageError(
                f"source {spec!r}: a source of your own is MODULE:CLASS, such as {_module(str(module))}:CLASS"
            )
        if path.is_file():
            raise UsageError(
                f"source {spec!r} is a file, not a log. Append its lines to a log, and give that: "
                f"actorproc produce --log events --partitions 8 {shlex.quote(str(path))}"
            )
        return spec
    found = _load("source", spec, Source)
    with user_code(f"making the source {spec!r}", HandlerDefinitionError):
        made = found() if callable(found) and not isinstance(found, Source) else found
    if not isinstance(made, Source):
        kind = type(made)
        raise HandlerDefinitionError(
            f"source {spec!r} is of class {kind.__module__}.{kind.__qualname__}; "
            "it must be, or make, an actorproc.Source"
        )
    return made


def load_function(spec: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names; modules are also looked for in the working directory.

    Raises:
        HandlerDefinitionError: there is no such module or function, or its own code fails.
    """
    if not names_object(spec) and not (":" in spec and _is_file(spec)):
        example = _with_colon(spec, "FUNCTION") or "app:delays for function delays of app.py"
        raise HandlerDefinitionError(f"function {spec!r}: write MODULE:FUNCTION, such as {example}")
    found = _load("function", spec, FunctionType)
    if not callable(found) or inspect.isclass(found):
        raise HandlerDefinitionError(f"{spec} is {found!r:.200}, no function")
    return found


def _load(what: str, spec: str, kind: type) -> object:
    name, _, path = spec.partition(":")
    if _is_file(spec):
        raise HandlerDefinitionError(f"{what} {spec!r}: name the module, not its file: {_module(name)}:{path}")
    if os.getcwd() not in sys.path:  # noqa: PTH109  # sys.path holds texts
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    found: object = _import(name)
    imported = sys.modules[name]
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise HandlerDefinitionError(
                f"{name}{_elsewhere(imported)} has no {path!r}{_suggestion(found, attribute, kind)}"
                f"{_shadow(name, imported)}"
            )
        found = getattr(found, attribute)
    return found


def _is_file(spec: str) -> bool:
    name = spec.partition(":")[0]
    return name.endswith(".py") or "/" in name


def _module(file: str) -> str:
    """As it is imported: without the src/ from which packages are installed, unless that is one itself."""
    path = file.removesuffix(".py").strip("./")
    return (path if Path("src/__init__.py").is_file() else path.removeprefix("src/")).replace("/", ".")


def _with_colon(spec: str, kind: str) -> str | None:
    """What was meant by a file, or by names with dots alone; None: nobody knows. `kind`: what the last name may be."""
    name = spec.partition(":")[0]
    if _is_file(spec):
        return f"{_module(name)}:{kind}"
    module, _, last = name.rpartition(".")
    if not module or not last:
        return None
    return f"{name}:{kind}" if kind == "CLASS" and last.islower() else f"{module}:{last}"


def _elsewhere(imported: ModuleType) -> str:
    """Where the module is, if that is not here: it may be another than was meant."""
    place = _place(imported)
    if place is not None and Path(place).is_relative_to(Path.cwd()):
        return ""
    return f" ({place or 'a part of Python itself'})"


def _place(imported: ModuleType) -> str | None:
    """Its file, or the folder of a package that has none; None: it is a part of Python itself."""
    return getattr(imported, "__file__", None) or next(iter(getattr(imported, "__path__", ())), None)


def _shadow(name: str, imported: ModuleType) -> str:
    """That another module than the one in the working directory was imported, if so."""
    here = Path.cwd().joinpath(*name.split("."))
    place = _place(imported) or "Python itself"
    for own in (here.with_suffix(".py"), here / "__init__.py"):
        if own.is_file() and not (Path(place).exists() and own.samefile(place)):
            return f".\nIt was imported from {place}, which hides {own}: give that another name"
    return ""


def _import(name: str) -> ModuleType:
    try:
        with user_code(f"importing {name}"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            where = f"{os.getcwd()} or on the Python path"  # noqa: PTH109
            raise HandlerDefinitionError(f"there is no module {error.name!r} in {where}") from None
        raise HandlerDefinitionError(_failed(name, error)) from error
    except HandlerDefinitionError as error:  # by the class statement of a handler
        raise HandlerDefinitionError(f"{_statement(error)}: {error}") from error
    except Exception as error:
        raised = error.__cause__ if type(error) is HandlerError else error  # a SystemExit became a HandlerError
        raise HandlerDefinitionError(_failed(name, raised or error)) from error


def _statement(error: BaseException) -> str:
    """File and line of the user's statement out of which it came."""
    steps = traceback.walk_tb(error.__traceback__)
    theirs = [step for step in steps if step[0].f_globals.get("__name__", "").partition(".")[0] not in _NOT_THEIRS]
    frame, line = theirs[-1]
    return f"{frame.f_code.co_filename}, line {line}"


def _failed(name: str, error: BaseException) -> str:
    """The end of the user's own traceback; without our frames and those of the import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
        and not frame.filename.startswith("<frozen")
        and frame.filename != importlib.__file__
    ]
    trace = "".join(traceback.format_list(frames[-_FRAMES:]))
    what = "".join(traceback.format_exception_only(error))
    return f"importing {name} failed:\n{trace}{what}".rstrip()


def _suggestion(holder: object, missing: str, kind: type) -> str:
    candidates = [name for name, value in vars(holder).items() if _fits(value, holder, kind)]
    near = get_close_matches(missing, candidates, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    what = "function" if kind is FunctionType else kind.__name__
    return f"; it has: {', '.join(sorted(candidates))}" if candidates else f"; there is no {what} in it"


def _fits(value: object, holder: object, kind: type) -> bool:
    """Whether it is what was meant: a class of that kind; or a function that is not just imported there."""
    if kind is FunctionType:
        return isinstance(value, FunctionType) and value.__module__ == getattr(holder, "__name__", None)
    return inspect.isclass(value) and issubclass(value, kind) and value is not kind
