"""A real MariaDB server as a child of this process. It comes from the Debian package `mariadb-server`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql

from tests.servers import REQUIRED, Unavailable, free_ports

_START = 60.0
_POLL = 0.05


@contextmanager
def mariadb(*options: str, zone: str | None = None) -> Iterator[str]:
    """The URL of an empty database.

    Args:
        zone: of the server's clock.

    Raises:
        Unavailable: the server cannot be had here.
    """
    _install()
    folder = Path(tempfile.mkdtemp(prefix="actorproc-mariadb-"))
    folder.chmod(0o755)
    data, scratch = folder / "data", folder / "tmp"  # a server that starts deletes what others have in /tmp
    user = "mysql" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    for made in (data, scratch):
        made.mkdir()
        shutil.chown(made, user)
    common = ["--no-defaults", f"--user={user}", f"--datadir={data}", f"--tmpdir={scratch}"]
    install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True)
    (port,) = free_ports(1)
    listens = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={data}/s.sock", f"--pid-file={data}/pid"]
    small = ["--innodb-buffer-pool-size=64M", "--performance-schema=OFF", "--innodb-flush-log-at-trx-commit=0"]
    with (folder / "log").open("wb") as log:
        line = [_program(), *common, *listens, *small, *options]
        environment = {**os.environ, "TZ": zone} if zone else None
        process = subprocess.Popen(line, env=environment, stderr=log, stdout=log)
    try:
        until = time.monotonic() + _START
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MariaDB did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(_POLL)
        yield f"mysql://root@127.0.0.1:{port}/tests"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _program() -> str:
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""


def _install() -> None:
    if not _program() and REQUIRED and os.getuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "mariadb-server"]
        for command in (["apt-get", "update", "--quiet"], install):
            subprocess.run(command, check=False, capture_output=True)
    if not _program():
        raise Unavailable("MariaDB: apt-get install mariadb-server")


def _answers(port: int) -> bool:
    try:
        with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection:
            connection.cursor().execute("CREATE DATABASE IF NOT EXISTS tests")
    except pymysql.err.OperationalError:
        return False
    return True
