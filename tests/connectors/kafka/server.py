"""A real Apache Kafka broker for tests and benchmarks: one node, KRaft, from Maven Central, on free loopback ports.

    with kafka(folder) as broker:
        consumer = Consumer({"bootstrap.servers": broker.address, ...})

A broker that cannot be had on this machine raises `Unavailable`, whose text is the reason to skip.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers import CACHE, Unavailable, free_ports

VERSION = "4.3.0"
USER, PASSWORD = (
    "$ConnectionString",
    "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
)
"""As Azure Event Hubs wants them."""
OCI_USER, OCI_POOL, OCI_TOKEN = "acme/oracleidentitycloudservice/me@acme.com", "ocid1.streampool.oc1.phx.x", "to<ken1>"
"""As OCI Streaming wants them."""
_LIBRARIES = CACHE / f"kafka-{VERSION}" / "libs"
_START = 90.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,TOKEN:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={jaas}
listener.name.tls.plain.sasl.jaas.config={jaas}
listener.name.tls.ssl.keystore.type=PKCS12
listener.name.tls.ssl.keystore.location={keystore}
listener.name.tls.ssl.keystore.password=changeit
listener.name.token.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.token.oauthbearer.sasl.jaas.config={token}
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=0
auto.create.topics.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""
_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_JAAS = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}" '
    f'"user_{OCI_USER}/{OCI_POOL}"="{OCI_TOKEN}";'
)


@dataclass
class Broker:
    """A broker, running or stopped; its data stay."""

    folder: Path
    plain_port: int
    sasl_port: int
    tls_port: int
    token_port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.plain_port}"

    @property
    def sasl_address(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def tls_address(self) -> str:
        """SASL over TLS. The certificate to trust is in `certificate`."""
        return f"127.0.0.1:{self.tls_port}"

    @property
    def token_address(self) -> str:
        """OAUTHBEARER, with unsigned tokens."""
        return f"127.0.0.1:{self.token_port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [*_java("-Xmx512m"), "kafka.Kafka", str(self.folder / "server.properties")]
        environment = os.environ | {"LOG_DIR": str(self.folder)}
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self._wait_until_ready()

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It answers nothing until `thaw`. Its connections stay open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _wait_until_ready(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 100})
        end = time.monotonic() + _START
        while True:
            with suppress(KafkaException):
                client.list_topics(timeout=1)
                return
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "broker.log").read_text()[-2000:])


@contextmanager
def kafka(folder: Path) -> Iterator[Broker]:
    """A broker that runs until the block ends. Raises `Unavailable` where Java, Maven or the client is missing."""
    _fetch()
    plain, sasl, tls, token, controller = free_ports(5)
    ports = {"PLAINTEXT": plain, "SASL": sasl, "TLS": tls, "TOKEN": token}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    keystore = _make_keystore(folder)
    properties = _PROPERTIES.format(
        listeners=listeners, controller=controller, data=folder / "data", jaas=_JAAS, token=_TOKENS, keystore=keystore
    )
    (folder / "server.properties").write_text(properties)
    (folder / "log4j2.yaml").write_text("Configuration:\n  Loggers:\n    Root:\n      level: warn\n")
    cluster = _tool("random-uuid").strip().splitlines()[-1]
    _tool("format", "-t", cluster, "-c", str(folder / "server.properties"))
    broker = Broker(folder, plain, sasl, tls, token)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _make_keystore(folder: Path) -> Path:
    """A key of its own with a certificate for 127.0.0.1, which is also written to `certificate.pem`."""
    store = folder / "keystore.p12"
    common = ["-keystore", str(store), "-storepass", "changeit", "-alias", "broker"]
    _keytool("-genkeypair", *common, "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1")
    _keytool("-exportcert", "-rfc", *common, "-file", str(folder / "certificate.pem"))
    return store


def _keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], capture_output=True, check=True)


def _java(memory: str) -> list[str]:
    return ["java", memory, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", str(_LIBRARIES / "*")]


def _tool(*arguments: str) -> str:
    command = [*_java("-Xmx128m"), "kafka.tools.StorageTool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _fetch() -> None:
    """The broker's jars, once per machine."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise Unavailable("confluent-kafka is not installed") from None
    for command in ("java", "keytool", "mvn"):
        if not _LIBRARIES.exists() and shutil.which(command) is None:
            raise Unavailable(f"Kafka needs {command}, which is not on PATH")
    if _LIBRARIES.exists():
        return
    place = _LIBRARIES.parent
    place.mkdir(parents=True, exist_ok=True)
    (place / "pom.xml").write_text(_POM)
    fetched = place / f"libs-{os.getpid()}"
    fetch = [
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={fetched}",
        "-DincludeScope=runtime",
    ]
    done = subprocess.run(fetch, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"Maven cannot fetch Kafka {VERSION}: {done.stdout[-300:]}")
    with suppress(OSError):
        fetched.rename(_LIBRARIES)
