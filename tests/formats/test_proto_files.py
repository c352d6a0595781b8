"""`.proto` texts of strangers: names of references are neither paths nor arguments, and compiling has limits."""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from actorproc.formats.protobuf import compiler as proto_compiler
from actorproc.formats.protobuf.files import parsed_protobuf

PLACE = 'syntax = "proto3"; package lib; message Place { string name = 1; } // Zürich'


def importing(*names: str, field: str = "lib.Place", package: str = "air") -> str:
    imports = "".join(f'import "{name}";' for name in names)
    return f'syntax = "proto3"; package {package}; {imports} message Flight {{ {field} it = 1; }}'


def serialized(text: str, references: dict[str, str] | None = None) -> str:
    file = FileDescriptorProto()
    parsed_protobuf(text, references).CopyToProto(file)
    return base64.b64encode(file.SerializeToString()).decode()


def field_type(file: Any) -> str:
    return str(file.message_types_by_name["Flight"].fields_by_name["it"].message_type.full_name)


NAMES = [
    "lib/place.proto", "common/v1/place.proto", "odd name.proto", "no_ending", "schema.proto", "_schema.proto",
    "-place.proto", "--python_out", "@place.proto", ".place.proto", "Zürich.proto", "0.proto", "google/mine.proto",
    "confluent/meta.proto", "$(touch x).proto", "in/known", "a'b.proto", "-I", "google/protobuf/mine.proto",
]  # fmt: skip


def test_a_reference_may_have_any_name_that_can_be_imported() -> None:
    texts = {name: PLACE.replace("lib", f"p{at}") for at, name in enumerate(NAMES)}
    fields = "".join(f"p{at}.Place it{at} = {at + 1};" for at in range(len(NAMES)))
    imports = "".join(f'import "{name}";' for name in [name.replace("'", "\\'") for name in NAMES])
    main = f'syntax = "proto3"; {imports} message Flight {{ {fields} }}'
    for references in (texts, {name: serialized(text) for name, text in texts.items()}):
        for text in (main, serialized(main, texts)):
            found = parsed_protobuf(text, references).message_types_by_name["Flight"].fields
            assert [field.message_type.full_name for field in found] == [f"p{at}.Place" for at in range(len(NAMES))]


@pytest.mark.parametrize("name", ["schema.proto", "_schema.proto"])
def test_a_reference_named_as_our_own_file_is_another_file(name: str) -> None:
    references = {name: PLACE, "_schema.proto": PLACE.replace("lib", "two"), "schema.proto": PLACE}
    file = parsed_protobuf(importing("schema.proto"), references)
    assert field_type(file) == "lib.Place"


SHIPPED = {
    "google/protobuf/timestamp.proto": "google.protobuf.Timestamp",
    "google/type/money.proto": "google.type.Money",
    "confluent/meta.proto": "confluent.Meta",
    "confluent/type/decimal.proto": "confluent.type.Decimal",
    "confluent/types/decimal.proto": "confluent.type.Decimal",
}


def test_files_that_libraries_ship_may_be_imported() -> None:
    imports = "".join(f'import "{name}";' for name in SHIPPED)
    fields = "".join(f"{kind} it{at} = {at + 1};" for at, kind in enumerate(SHIPPED.values()))
    between = f'syntax = "proto3"; package between; {imports} message Flight {{ {fields} }}'
    over = importing("between.proto", field="between.Flight")
    for text in (between, serialized(between)):
        found = parsed_protobuf(text).message_types_by_name["Flight"].fields
        assert [field.message_type.full_name for field in found] == list(SHIPPED.values())
        assert field_type(parsed_protobuf(over, {"between.proto": text})) == "between.Flight"


HOSTILE = [
    "{out}/absolute.proto", "../../../../../../..{out}/up.proto", "a/../../up.proto", "./here.proto", "a//b.proto",
    "--python_out={out}", "--plugin=protoc-gen-x={out}/program", "--x_out={out}", "x:{out}=y", "@{out}/arguments",
    "a=b.proto", "a:b.proto", "", ".", "..", "/", "a\x00b.proto", "a\nb.proto", "a\\b.proto", "x" * 5000, "\ud800",
    "-I{out}", "-o{out}/descriptors", "--descriptor_set_out={out}/descriptors",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_the_name_of_a_reference_is_neither_a_path_nor_an_argument(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    program.chmod(0o755)
    (tmp_path / "arguments").write_text(f"--python_out={tmp_path}\n")
    name = name.replace("{out}", str(tmp_path))
    others = {"--x_out=" + str(tmp_path): PLACE} if name.startswith("--plugin") else {}
    with suppress(ValueError):
        parsed_protobuf('syntax = "proto3"; message Flight {}', {name: PLACE, **others})
    assert sorted(os.listdir(tmp_path)) == ["arguments", "program"]


@pytest.mark.parametrize("name", ["/etc/hosts", "../x.proto", "google/../x.proto", "google/os.proto", "os.proto"])
def test_an_import_that_is_no_reference_is_missing(name: str) -> None:
    with pytest.raises(ValueError, match=r"x\.proto|hosts|os\.proto"):
        parsed_protobuf(importing(name))
    file = FileDescriptorProto(name="a.proto", syntax="proto3", dependency=[name])
    with pytest.raises(ValueError, match="which is not among its references"):
        parsed_protobuf(base64.b64encode(file.SerializeToString()).decode())


def test_a_module_of_the_working_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpc_tools.py").write_text("open('executed', 'w')")
    parsed_protobuf(PLACE)
    assert not (tmp_path / "executed").exists()


def test_compiling_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_compiler, "TIMEOUT", 0.01)
    with pytest.raises(ValueError, match="does not compile within"):
        parsed_protobuf(PLACE)


@pytest.mark.parametrize(
    "limit", [{"_CPU_SECONDS": 0}, {"_OUTPUT": 10}, {"_MEMORY": 2**20}, {"LONGEST_TEXT": 10}, {"MOST_SOURCES": 0}]
)
def test_a_schema_beyond_a_limit_does_not_compile(limit: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(proto_compiler, name, value)
    with pytest.raises(ValueError, match=r"protoc|more than"):
        parsed_protobuf(PLACE + "".join(f"message M{n} {{}}" for n in range(5000)))


def test_errors_of_protoc_are_short() -> None:
    with pytest.raises(ValueError, match="protoc: ") as error:
        parsed_protobuf("message M { x y = 1; }" * 20_000)
    assert len(str(error.value)) < 5000
