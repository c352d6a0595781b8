"""The exports of `actorproc`, and the cost of its import."""

from __future__ import annotations

import subprocess
import sys

import actorproc


def test_every_exported_name_is_there_and_sorted() -> None:
    assert actorproc.__all__ == sorted(actorproc.__all__)
    for name in actorproc.__all__:
        assert getattr(actorproc, name).__name__ == name


def test_dir_lists_public_names_only() -> None:
    assert sorted(dir(actorproc)) == sorted([*actorproc.__all__, "__version__"])


def test_importing_the_package_alone_imports_nothing_heavy() -> None:
    code = "import actorproc, sys; print(sorted({'pyarrow', 'aiobotocore', 'pydantic', 'anyio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_importing_all_that_is_exported_does_not_import_pandas() -> None:
    code = "from actorproc import *; import sys; assert 'pyarrow' in sys.modules; print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
