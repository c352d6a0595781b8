"""Unpickling a reader or writer in a task sends the pending TCP ACKs."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from actorproc import Producer
from actorproc.spark.data_source import ActorprocSource

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone can be asked for an ACK")

VALUES = StructType([StructField("value", BinaryType())])


def delays(connection: socket.socket) -> bool:
    """Whether the kernel waits for something to send along with an ACK."""
    return not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


@contextmanager
def default_timeout(seconds: float) -> Iterator[None]:
    """As some library sets it in the same process."""
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.parametrize("kind", ["reader", "streamReader", "writer", "streamWriter"])
async def test_unpickling_a_reader_or_writer_sends_pending_acks(tmp_path: Path, kind: str) -> None:
    async with Producer(str(tmp_path), partitions=1):
        pass
    options = {"path": str(tmp_path)} | ({} if kind.endswith("riter") else {"kind": "log"})
    source: Any = ActorprocSource(options)
    sent = getattr(source, kind)(VALUES, *([False] if kind.endswith("riter") else []))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as spark,
        server.accept()[0] as task,
        socket.socket(socket.AF_UNIX),  # one that knows no ACK
    ):
        for _ in range(10):  # question and answer: so the kernel takes it that a word will follow an ACK
            spark.send(b"?")
            task.recv(1)
            task.send(b"!")
            spark.recv(1)
        assert delays(task)
        with default_timeout(5):
            assert type(pickle.loads(pickle.dumps(sent))) is type(sent)
        assert not delays(task)
        assert os.get_blocking(task.fileno())
        spark.send(b"and is still open")
        assert task.recv(4) == b"and "
