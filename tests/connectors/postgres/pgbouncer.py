"""A real pgbouncer in front of a server, in transaction mode: the program of the machine (apt: pgbouncer)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.connectors.postgres.server import Postgres
from tests.servers import Unavailable

_START = 30.0


@contextmanager
def pgbouncer(server: Postgres, *, connections: int, user: str = "postgres") -> Iterator[str]:
    """The URL of the database through a pooler that has so many connections to the server, as this user.

    Raises:
        Unavailable: it cannot be had here.
    """
    if (program := shutil.which("pgbouncer")) is None:
        raise Unavailable("pgbouncer: apt-get install pgbouncer")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="actorproc-pgbouncer-"))
    folder.chmod(0o755)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user={user}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {connections}\n"
    )
    account = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None  # it refuses root
    process = subprocess.Popen([program, "-q", settings], stderr=subprocess.DEVNULL, cwd="/", user=account)
    try:
        _await(port, process)
        yield f"postgresql://anybody@127.0.0.1:{port}/postgres"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("pgbouncer did not start") from None
            time.sleep(0.02)
