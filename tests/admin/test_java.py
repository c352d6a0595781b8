"""Spark's Java: found as Spark finds it. A missing or old one is an error that names the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorproc.admin.java import check_java, find_java
from actorproc.errors import UsageError


def fake_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is `version`."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_402", 8), ("11.0.22", 11), ("17.0.15", 17), ("21", 21), ("25-ea", 25)]
)
def test_the_version_of_java_is_read_as_each_release_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    assert find_java() == (str(tmp_path / "jdk/bin/java"), major)
    if major < 17:
        with pytest.raises(UsageError, match=rf"needs Java 17 or newer.*is Java {major}.*apt install"):
            check_java("the demo")
    else:
        check_java("the demo")


def test_a_java_home_without_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=rf"JAVA_HOME={tmp_path} does not start one: install"):
        check_java("the demo")
