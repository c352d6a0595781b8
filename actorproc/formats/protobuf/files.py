"""Descriptors of `.proto` files, from the texts that a schema registry keeps.

The texts and the names of references are a stranger's. So no name becomes a path, a module or an argument of its own:
see `proto_compiler`, and the table of the files that libraries ship.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as NotADescriptor

from actorproc.formats.protobuf.compiler import compiled

_SHIPPED = {"google": "google", "confluent": "confluent_kafka.schema_registry.confluent"}
"""Packages of libraries with generated modules, by the folder of their files in imports."""


def parsed_protobuf(text: str, references: Mapping[str, str] | None = None) -> Any:
    """The descriptor of a file.

    Args:
        text: a `.proto` file; or its FileDescriptorProto in base64, as serializers register it.
        references: the same of the files that it imports, by the names of the imports.

    Raises:
        ValueError: it does not compile, or an import is missing.
    """
    references = references or {}
    main = "schema.proto"
    while main in references:
        main = f"_{main}"
    texts = {**references, main: text}
    files = {name: file for name, text in texts.items() if (file := _serialized(text, name)) is not None}
    if sources := {name: text for name, text in texts.items() if name not in files}:
        shipped = [_shipped(name) for name in _shipped_modules() if name.startswith("confluent/") and name not in texts]
        files = {file.name: file for file in compiled(sources, [*files.values(), *shipped])} | files
    pool = DescriptorPool()
    try:
        _add(main, files, pool, set())
        return pool.FindFileByName(main)
    except (TypeError, KeyError) as error:
        raise ValueError(f"the schema is not a complete .proto file: {error}") from None


def _serialized(text: str, name: str) -> FileDescriptorProto | None:
    """The descriptor in base64; None if it is a `.proto` file."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, NotADescriptor):
        return None
    file.name = name  # by which others import it
    return file


def _add(name: str, files: Mapping[str, FileDescriptorProto], pool: DescriptorPool, added: set[str]) -> None:
    """Add a file to the pool, after the files that it imports."""
    if name in added:
        return
    added.add(name)
    file = files.get(name) or _shipped(name)
    for imported in file.dependency:
        _add(imported, files, pool, added)
    pool.AddSerializedFile(file.SerializeToString())


def _shipped(name: str) -> FileDescriptorProto:
    module = _shipped_modules().get(name)
    if module is None:
        raise KeyError(f"it imports {name}, which is not among its references")
    file = FileDescriptorProto()
    importlib.import_module(module).DESCRIPTOR.CopyToProto(file)
    return file


@cache
def _shipped_modules() -> dict[str, str]:
    """Generated modules that come with libraries, by the names of their `.proto` files."""
    found = {}
    for start, package in _SHIPPED.items():
        for folder in map(Path, importlib.import_module(package).__path__):
            for path in folder.rglob("*_pb2.py"):
                parts = path.relative_to(folder).with_suffix("").parts
                name = "/".join((start, *parts)).removesuffix("_pb2")
                found[f"{name}.proto"] = ".".join((package, *parts))
    return found
