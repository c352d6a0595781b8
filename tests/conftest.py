"""S3 servers, brokers, Kinesis and Spark for the whole run. Each pytest worker starts its own when a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
import structlog

from tests import servers
from tests.connectors.amqp import servers as amqp_servers
from tests.connectors.amqp.servers import AmqpBroker
from tests.connectors.gcs import server as gcs_servers
from tests.connectors.gcs.server import GcsServer
from tests.connectors.kafka import server as kafka_server
from tests.connectors.kafka.server import Broker
from tests.connectors.kinesis import servers as kinesis_servers
from tests.connectors.kinesis.servers import KinesisServer
from tests.connectors.shared import azure_storage
from tests.connectors.shared.azure_storage import BlobServer
from tests.scheduling import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.scheduling import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.servers import S3Server

T = TypeVar("T")

# They assert, too.
pytest.register_assert_rewrite("tests.group.simulated_group", "tests.partition.world", "tests.testing.sources")


hypothesis.settings.register_profile("suite", deadline=None)  # a slow machine is not a failure
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo the configuration by `capture_logs`, so that our logs go to `logging` again, and clear bound variables."""
    configured = structlog.is_configured()
    yield
    structlog.contextvars.clear_contextvars()
    if not configured:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    yield from _started(servers.seaweedfs, tmp_path_factory.mktemp("seaweedfs"))


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    yield from _started(servers.minio, tmp_path_factory.mktemp("minio"))


@pytest.fixture(params=servers.params(minio=pytest.mark.slow))
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """A running server of each kind. `await s3_server.new_url()` returns an empty prefix on it."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker. A test that stops it starts it again."""
    yield from _started(kafka_server.kafka, tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="session")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    """A broker of queues that keeps them when it is restarted. A test that stops it starts it again."""
    yield from _started(amqp_servers.artemis, tmp_path_factory.mktemp("artemis"))


@pytest.fixture(scope="session")
def broker_j(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    """Another broker of queues."""
    yield from _started(amqp_servers.broker_j, tmp_path_factory.mktemp("broker-j"))


@pytest.fixture(scope="session")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisServer]:
    """A server of Kinesis' protocol."""
    yield from _started(kinesis_servers.kinesis_local, tmp_path_factory.mktemp("kinesis"))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlobServer]:
    """A server of Azure's blob protocol."""
    yield from _started(azure_storage.azurite, tmp_path_factory.mktemp("azurite"))


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A double of Cloud Storage."""
    yield from _started(gcs_servers.double, tmp_path_factory.mktemp("gcs"))


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """Somebody else's."""
    yield from _started(gcs_servers.fake_gcs_server, tmp_path_factory.mktemp("fake-gcs"))


@pytest.fixture(scope="session")
def _spark() -> Iterator[Any]:
    pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    from tests.spark.conftest import new_session

    session = new_session()
    yield session
    session.stop()


@pytest.fixture
def spark(_spark: Any) -> Any:
    """One Spark session for all tests of a worker. A test must not stop it.

    A test that opens others leaves one of these as the thread's, where Spark then looks for our data source.
    """
    from actorproc.spark.session import activate

    activate(_spark)
    return _spark


def _started(start: Callable[[Path], AbstractContextManager[T]], folder: Path) -> Iterator[T]:
    with servers.or_skip(start(folder)) as server:
        yield server
