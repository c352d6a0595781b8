"""Descriptors of `.proto` files, from the texts that a schema registry keeps."""

from __future__ import annotations

import base64
import binascii
import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as NotADescriptor
from google.type import date_pb2

_MAIN = "schema.proto"
_SHIPPED = {"google/": "", "confluent/": "confluent_kafka.schema_registry."}
"""Files that come with libraries, by the beginning of their names, and the packages of their modules."""


def parsed_protobuf(text: str, references: Mapping[str, str] | None = None) -> Any:
    """The descriptor of a file.

    Args:
        text: a `.proto` file; or its FileDescriptorProto in base64, as serializers register it.
        references: the same of the files that it imports, by the names of the imports.

    Raises:
        ValueError: it does not compile, or an import is missing.
    """
    texts = {**(references or {}), _MAIN: text}
    files = {name: file for name, text in texts.items() if (file := _serialized(text, name)) is not None}
    if sources := {name: text for name, text in texts.items() if name not in files}:
        files = {file.name: file for file in _compiled(sources, list(files.values()))} | files
    pool = DescriptorPool()
    try:
        _add(_MAIN, files, pool, set())
        return pool.FindFileByName(_MAIN)
    except (TypeError, KeyError, ImportError, AttributeError) as error:
        raise ValueError(f"the schema is not a complete .proto file: {error}") from None


def _serialized(text: str, name: str) -> FileDescriptorProto | None:
    """The descriptor in base64; None if it is a `.proto` file."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, NotADescriptor):
        return None
    file.name = name  # by which others import it
    return file


def _compiled(sources: Mapping[str, str], known: list[FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Descriptors of the sources and of their imports, from protoc."""
    with TemporaryDirectory() as folder:
        for name, text in sources.items():
            path = Path(folder, "in", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        result = Path(folder, "out")
        shipped = Path(date_pb2.__file__).parents[2]  # those of google/type; protoc has those of google/protobuf
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}/in", f"-I{shipped}", "--include_imports"]
        if known:
            Path(folder, "known").write_bytes(FileDescriptorSet(file=known).SerializeToString())
            command.append(f"--descriptor_set_in={Path(folder, 'known')}")
        done = subprocess.run(  # noqa: S603  # protoc reads files, and runs nothing
            [*command, f"--descriptor_set_out={result}", *sources], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if not line.startswith(("WARNING", "W0"))]
            raise ValueError(f"protoc: {'; '.join(errors).replace(f'{folder}/in/', '')}")
        return list(FileDescriptorSet.FromString(result.read_bytes()).file)


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
    package = next((package for start, package in _SHIPPED.items() if name.startswith(start)), None)
    if package is None:
        raise KeyError(f"it imports {name}, which is not among its references")
    module = importlib.import_module(package + name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file
