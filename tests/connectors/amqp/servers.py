"""Real AMQP 1.0 brokers for tests, from Maven Central, on free loopback ports: ActiveMQ Artemis and Qpid Broker-J.

    with artemis(folder) as broker:
        source = AmqpSource(broker.url("single.orders"))

A broker that cannot be had on this machine raises `Unavailable`, whose text is the reason to skip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import CACHE, Unavailable, _die_with_parent, free_ports

USER, PASSWORD = "admin", "secret"
IDLE_TIMEOUT = 4
"""Seconds after which Artemis drops a silent connection."""
_START = 90.0
_ARTEMIS = ("org.apache.activemq", "apache-artemis", "2.40.0")
_BROKER_J = ("org.apache.qpid", "apache-qpid-broker-j", "9.2.0")
_FLAGS = "-Xms64m -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.net.preferIPv4Stack=true"
_SETTINGS = """<address-settings>
<address-setting match="{match}"><auto-create-queues>true</auto-create-queues>
<auto-create-addresses>true</auto-create-addresses><auto-delete-queues>false</auto-delete-queues>
<auto-delete-addresses>false</auto-delete-addresses><max-delivery-attempts>-1</max-delivery-attempts>
<default-address-routing-type>ANYCAST</default-address-routing-type>
<default-queue-routing-type>ANYCAST</default-queue-routing-type>{more}</address-setting>"""
_SINGLE = "<default-max-consumers>1</default-max-consumers>"
_PARKED = "<default-exclusive-queue>true</default-exclusive-queue>"


@dataclass
class AmqpBroker:
    """A broker, running or stopped. Queues are made when a message is sent to them."""

    name: str
    port: int
    folder: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    durable: bool = True
    """Whether it keeps messages when it is restarted."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def url(self, queues: str) -> str:
        """URL of a source. The password goes into `options`."""
        return f"amqp://{USER}@127.0.0.1:{self.port}/{queues}"

    @property
    def options(self) -> dict[str, Any]:
        return {"password": PASSWORD}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | self.environment,
                start_new_session=True, preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call of prctl)
            )  # fmt: skip
        end = time.monotonic() + _START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "broker.log").read_text(errors="replace")[-3000:])
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing at all, as a machine without time to spare."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def send(self, queue: str, messages: Sequence[Any]) -> None:
        """Send messages, each a `proton.Message`, or bytes with a message id and group id of their own."""
        from proton import Message

        connection = self._connect(30)
        sender = connection.create_sender(queue)
        for message in messages:
            if isinstance(message, bytes):
                message = Message(body=message, id=f"{queue}/{message.decode()}", group_id="g", durable=self.durable)  # noqa: PLW2901
            sender.send(message, timeout=30)
        connection.close()

    def _connect(self, timeout: float) -> Any:
        from proton.utils import BlockingConnection

        login: dict[str, Any] = {
            "user": USER,
            "password": PASSWORD,
            "allowed_mechs": "PLAIN",
            "allow_insecure_mechs": True,
        }
        return BlockingConnection(f"127.0.0.1:{self.port}", timeout=timeout, **login)

    def _answers(self) -> bool:
        """Whether it accepts a login, which a broker that listens may refuse until its store is there."""
        from proton import ProtonException

        with suppress(OSError, ProtonException):
            self._connect(2).close()
            return True
        return False


@contextmanager
def artemis(folder: Path) -> Iterator[AmqpBroker]:
    """ActiveMQ Artemis: queues `single.*` refuse a second consumer, queues `parked.*` let it wait."""
    home = _fetched(*_ARTEMIS)
    port, core = free_ports(2)
    instance = folder / "instance"
    create = [str(home / "bin" / "artemis"), "create", str(instance), "--user", USER, "--password", PASSWORD]
    create += ["--require-login", "--host", "127.0.0.1", "--http-host", "127.0.0.1", "--default-port", str(core)]
    create += ["--no-hornetq-acceptor", "--no-mqtt-acceptor", "--no-stomp-acceptor", "--no-web", "--silent"]
    create += ["--relax-jolokia", "--no-autotune", "--nio"]
    subprocess.run(create, check=True, capture_output=True, env=os.environ | {"JAVA_ARGS": _FLAGS})
    configuration = instance / "etc" / "broker.xml"
    text = configuration.read_text()
    options = f"protocols=AMQP;amqpIdleTimeout={IDLE_TIMEOUT * 1000}"
    acceptor = f'<acceptor name="amqp">tcp://127.0.0.1:{port}?{options}</acceptor>'
    text = re.sub(r"<acceptors>.*</acceptors>", f"<acceptors>{acceptor}</acceptors>", text, flags=re.DOTALL)
    settings = _SETTINGS.format(match="single.#", more=_SINGLE)
    settings += _SETTINGS.format(match="parked.#", more=_PARKED).removeprefix("<address-settings>")
    text = text.replace("<address-settings>", settings, 1)
    text = re.sub(r"<max-disk-usage>\d+<", "<max-disk-usage>100<", text)  # a full disk blocks its producers in silence
    configuration.write_text(text)
    environment = {"JAVA_ARGS": f"{_FLAGS} -Dhawtio.disableProxy=true"}
    broker = AmqpBroker("artemis", port, folder, [str(instance / "bin" / "artemis"), "run"], environment)
    yield from _running(broker)


@contextmanager
def broker_j(folder: Path, *, durable: bool = False) -> Iterator[AmqpBroker]:
    """Apache Qpid Broker-J: its queues refuse a second consumer. `durable`: in Derby, and not in memory."""
    home = _fetched(*_BROKER_J)
    (port,) = free_ports(1)
    exclusive = {"exclusive": "LINK"}
    configuration = {
        "name": "broker", "modelVersion": "9.0",
        "authenticationproviders": [
            {
                "name": "plain", "type": "Plain", "secureOnlyMechanisms": [],
                "users": [{"name": USER, "type": "managed", "password": PASSWORD}],
            }
        ],
        "ports": [
            {
                "name": "AMQP", "port": port, "bindingAddress": "127.0.0.1", "authenticationProvider": "plain",
                "protocols": ["AMQP_1_0"],
                "virtualhostaliases": [{"name": "hostnameAlias", "type": "hostnameAlias"}],
            }
        ],
        "defaultVirtualHost": "default",
        "virtualhostnodes": [
            {
                "name": "default", "type": "JSON" if durable else "Memory", "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": json.dumps(
                    {
                        "type": "DERBY" if durable else "Memory", "name": "default",
                        "nodeAutoCreationPolicies": [
                            {
                                "pattern": ".*", "nodeType": "queue", "attributes": exclusive,
                                "createdOnPublish": "true", "createdOnConsume": "true",
                            }
                        ],
                    }
                ),
            }
        ],
    }  # fmt: skip
    (folder / "initial.json").write_text(json.dumps(configuration))
    environment = {
        "QPID_WORK": str(folder),
        "QPID_JAVA_MEM": "-Xmx256m",
        "QPID_OPTS": "-Djava.net.preferIPv4Stack=true",
    }
    command = [str(home / "bin" / "qpid-server"), "-icp", str(folder / "initial.json")]
    yield from _running(AmqpBroker("broker-j", port, folder, command, environment, durable))


def _running(broker: AmqpBroker) -> Iterator[AmqpBroker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _fetched(group: str, artifact: str, version: str) -> Path:
    """The unpacked distribution, fetched once per machine."""
    try:
        import proton  # noqa: F401
    except ImportError:
        raise Unavailable("python-qpid-proton is not installed") from None
    place = CACHE / f"{artifact}-{version}"
    if not place.exists():
        for command in ("java", "mvn"):
            if shutil.which(command) is None:
                raise Unavailable(f"{artifact} needs {command}, which is not on PATH")
        _fetch(place, f"{group}:{artifact}:{version}:tar.gz:bin")
    return next(found.parent.parent for found in place.glob("**/bin/*") if found.name in ("artemis", "qpid-server"))


def _fetch(place: Path, artifact: str) -> None:
    folder = place.parent / f"fetching-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    command = ["mvn", "-q", "-B", plugin, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"Maven cannot fetch {artifact}: {done.stdout[-300:]}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    with suppress(OSError):  # another run was first
        folder.rename(place)
    shutil.rmtree(folder, ignore_errors=True)
