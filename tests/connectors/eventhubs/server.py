"""Event Hubs over AMQP 1.0, as far as its official clients ask for it: hubs, partitions, epochs, tokens.

    with eventhubs() as server:
        server.create("flights", partitions=2)
        source = EventHubsSource(server.url("flights"), {"connection_string": server.connection_string})

No broker that can be had here serves azure-eventhub: the client asks for `$cbs` and `$management` nodes, and reads
fields by their place, where other brokers leave trailing nulls out. So this server speaks through the client's own
codec, which are private modules: pyproject.toml pins the client. It follows the client's source and Microsoft's guide
(https://learn.microsoft.com/azure/event-hubs/event-hubs-amqp-protocol-guide).

It does not reproduce: TLS and web sockets, the check of Entra's tokens (any is taken), retention by time, the service's
own hash of partition keys, quotas and throttling, detaching of idle links, and geo-replication.
"""

# mypy: disable-error-code="arg-type,call-arg,union-attr,func-returns-value"
# The client's private codec is typed for its own use only.

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import struct
import threading
import time
import urllib.parse
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from azure.eventhub._pyamqp import endpoints, error, outcomes, performatives
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from azure.eventhub._pyamqp._encode import encode_frame, encode_payload, encode_value
from azure.eventhub._pyamqp.message import Message, Properties
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes

KEY_NAME, KEY = "admin", "secret"
MESSAGE_BYTES_MAX = 2**20
MESSAGE_BYTES_TAKEN = MESSAGE_BYTES_MAX
BATCH_FORMAT = 0x80013700
READERS_MAX = 5  # per partition and consumer group, without epochs
_CREDIT = 300  # of a sender
_WINDOW = 5000  # frames of a session
_KEEP_ALIVE = 10.0
_FRAMES = {
    16: performatives.OpenFrame, 17: performatives.BeginFrame, 18: performatives.AttachFrame,
    19: performatives.FlowFrame, 20: performatives.TransferFrame, 21: performatives.DispositionFrame,
    22: performatives.DetachFrame, 23: performatives.EndFrame, 24: performatives.CloseFrame,
}  # fmt: skip
_FILTER = re.compile(r"amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time) (>=?) '(.*)'")


def _typed(kind: AMQPTypes, value: Any) -> dict[str, Any]:
    return {TYPE: kind, VALUE: value}


def _long(value: int) -> dict[str, Any]:
    return _typed(AMQPTypes.long, value)


def _string(value: str) -> dict[str, Any]:
    return _typed(AMQPTypes.string, value)


def _time(milliseconds: float) -> dict[str, Any]:
    return _typed(AMQPTypes.timestamp, int(milliseconds))


class Event(NamedTuple):
    """An event of a partition."""

    sequence: int
    offset: str
    time: int  # milliseconds since 1970
    key: str | None
    message: Message


class Partition:
    """Events in order, and the links that read them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first = 0
        self.readers: set[Link] = set()

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1

    def append(self, messages: list[Message], key: str | None) -> None:
        now = int(time.time() * 1000)
        for message in messages:
            sequence = self.last + 1
            self.events.append(Event(sequence, str(64 * sequence), now, key, message))
        for link in self.readers:
            link.wake.set()

    def remove_before(self, sequence: int) -> None:
        """As retention does."""
        del self.events[: sequence - self.first]
        self.first = sequence

    def place(self, selector: str) -> int:
        """Sequence from which a link with this filter reads."""
        found = _FILTER.match(selector)
        if found is None or found[3] == "-1":
            return self.first
        if found[3] == "@latest":
            return self.last + 1
        read: Callable[[Event], int] = {
            "offset": lambda event: int(event.offset),
            "sequence-number": lambda event: event.sequence,
            "enqueued-time": lambda event: event.time,
        }[found[1]]
        least = int(found[3]) + (found[2] == ">")
        return next((event.sequence for event in self.events if read(event) >= least), self.last + 1)


@dataclass
class Hub:
    """A hub: its partitions, and when it was created (milliseconds since 1970)."""

    partitions: list[Partition]
    created: int
    _turn: int = 0

    def choose(self, number: str | None, key: str | None) -> Partition:
        if number is not None:
            return self.partitions[int(number)]
        if key is not None:
            return self.partitions[zlib.crc32(key.encode()) % len(self.partitions)]
        self._turn += 1
        return self.partitions[self._turn % len(self.partitions)]


@dataclass(eq=False)
class Link:
    """One direction of messages, as its peer has attached it."""

    connection: Connection
    channel: int
    handle: int
    path: str
    to_client: bool
    hub: Hub | None = None
    number: str | None = None  # of the partition that a sender names
    partition: Partition | None = None  # that a reader reads
    group: str = ""
    epoch: int | None = None
    next: int = 0  # sequence of the next event
    credit: int = 0
    delivered: int = 0
    open: bool = True
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    received: bytes = b""
    delivery_id: int = 0
    format: int | None = None


@dataclass
class Session:
    links: dict[int, Link] = field(default_factory=dict)
    sent: int = 1
    received: int = 0


class Refused(Exception):
    """A link is detached at once, with this condition."""

    def __init__(self, condition: bytes, text: str) -> None:
        super().__init__(text)
        self.condition = condition


class EventHubsServer:
    """The server, on a thread of its own. Its methods are for the tests' thread."""

    def __init__(self) -> None:
        self.hubs: dict[str, Hub] = {}
        self.connections: set[Connection] = set()
        self.accepted = 0
        """How many connections there were so far."""
        self.asked: Counter[str] = Counter()
        """How often hubs and partitions were asked about so far, by the type of the question."""
        self.key = KEY
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="eventhubs", daemon=True)

    @property
    def connection_string(self) -> str:
        """With `UseDevelopmentEmulator`, by which the client takes a port and no TLS."""
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={self.key};"
            "UseDevelopmentEmulator=true"
        )

    def url(self, hub: str) -> str:
        return f"eventhubs+amqp://127.0.0.1:{self.port}/{hub}"

    def create(self, name: str, partitions: int) -> Hub:
        """A hub. One of the same name is deleted, and its readers are detached."""
        hub = Hub([Partition() for _ in range(partitions)], int(time.time() * 1000))
        before, self.hubs[name] = self.hubs.get(name), hub
        if before is not None:
            self.detach(before, b"amqp:not-found", "The messaging entity was deleted.")
        return hub

    def detach(self, hub: Hub, condition: bytes, text: str) -> None:
        """Detach all readers of a hub, as the service does now and then."""
        self.call(self._detach, hub, condition, text)

    def disconnect(self) -> None:
        """Drop all connections without a word."""
        self.call(lambda: [connection.writer.transport.abort() for connection in self.connections])

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the server's thread."""

        async def called() -> Any:
            return function(*arguments)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(10)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda r, w: Connection(self, r, w).run(), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        async with server:
            while not self._stopped.is_set():
                await asyncio.sleep(0.05)

    def _detach(self, hub: Hub, condition: bytes, text: str) -> None:
        for partition in hub.partitions:
            for link in list(partition.readers):
                link.connection.detach(link, Refused(condition, text))

    def is_signed(self, token: str) -> bool:
        """Whether a shared access signature is of our key, and not expired."""
        fields = dict(part.split("=", 1) for part in token.partition(" ")[2].split("&") if "=" in part)
        if not {"sr", "se", "sig"} <= fields.keys():
            return False
        text = f"{fields['sr']}\n{fields['se']}".encode()
        signature = base64.b64encode(hmac.new(self.key.encode(), text, hashlib.sha256).digest()).decode()
        return urllib.parse.unquote(fields["sig"]) == signature and int(fields["se"]) > time.time()


class Connection:
    """One client's connection."""

    def __init__(self, server: EventHubsServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self._is_authorized = False
        self._sessions: dict[int, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._frame_bytes = 65536

    async def run(self) -> None:
        self.server.connections.add(self)
        self.server.accepted += 1
        try:
            await self._handshake()
            self._spawn(self._keep_alive())
            while await self._handle(*await self._read()):
                await self.writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.server.connections.discard(self)
            for task in self._tasks:
                task.cancel()
            for session in self._sessions.values():
                self._forget(session)
            self.writer.close()

    # Frames

    async def _handshake(self) -> None:
        protocol = (await self.reader.readexactly(8))[4]
        if protocol == 3:  # SASL
            self.writer.write(b"AMQP\x03\x01\x00\x00")
            self._send(performatives.SASLMechanism([b"ANONYMOUS", b"PLAIN"]), kind=b"\x01")
            await self._read()
            self._send(performatives.SASLOutcome(0, None), kind=b"\x01")
            await self.reader.readexactly(8)
        self.writer.write(b"AMQP\x00\x01\x00\x00")

    async def _read(self) -> tuple[int, int, Any]:
        """Code, channel and fields of the next frame; code 0 for an empty one."""
        size, _, _, channel = struct.unpack(">IBBH", await self.reader.readexactly(8))
        if size == 8:
            return 0, channel, None
        code, fields = decode_frame(memoryview(await self.reader.readexactly(size - 8)))
        if code == 20:  # the payload is last, behind as many fields as were sent
            fields = [*fields[:-1], *[None] * (12 - len(fields)), fields[-1]]
        return code, channel, _FRAMES[code](*fields) if code in _FRAMES else None

    def _send(self, frame: Any, channel: int = 0, kind: bytes = b"\x00") -> None:
        header, body = encode_frame(frame, kind)
        self.writer.write(header + struct.pack(">H", channel) + (body or b""))

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_ALIVE)
            self._send(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, code: int, channel: int, frame: Any) -> bool:
        """Answer a frame. Returns whether the connection goes on."""
        session = self._sessions.get(channel)
        match code:
            case 16:
                self._frame_bytes = min(self._frame_bytes, frame.max_frame_size or self._frame_bytes)
                self._send(performatives.OpenFrame("tests", None, 65536, 4999, 120_000, None, None, None, None, {}))
            case 17:
                self._sessions[channel] = Session(received=frame.next_outgoing_id)
                begin = performatives.BeginFrame(channel, 1, _WINDOW, _WINDOW, 255, None, None, None)
                self._send(begin, channel)
            case 18 if session:
                self._attach(session, channel, frame)
            case 19 if session and frame.handle in session.links:
                link = session.links[frame.handle]
                link.credit = (frame.delivery_count or 0) + (frame.link_credit or 0) - link.delivered
                link.wake.set()
            case 20 if session and frame.handle in session.links:
                self._transfer(session, session.links[frame.handle], frame)
            case 22 if session and frame.handle in session.links:
                self._drop(session.links[frame.handle])
                self._send(performatives.DetachFrame(frame.handle, bool(frame.closed), None), channel)
            case 23 if session:
                self._forget(self._sessions.pop(channel))
                self._send(performatives.EndFrame(None), channel)
            case 24:
                self._send(performatives.CloseFrame(None))
                return False
        return True

    # Links

    def _forget(self, session: Session) -> None:
        for link in list(session.links.values()):
            self._drop(link)

    def _drop(self, link: Link) -> None:
        link.open = False
        link.wake.set()
        if session := self._sessions.get(link.channel):
            session.links.pop(link.handle, None)
        if link.partition is not None:
            link.partition.readers.discard(link)

    def detach(self, link: Link, reason: Refused) -> None:
        self._drop(link)
        cause = error.AMQPError(reason.condition, str(reason), None)
        self._send(performatives.DetachFrame(link.handle, True, cause), link.channel)

    def _attach(self, session: Session, channel: int, frame: Any) -> None:
        source = endpoints.Source(*frame.source) if frame.source else endpoints.Source()
        target = endpoints.Target(*frame.target) if frame.target else endpoints.Target()
        address = ((source.address if frame.role else target.address) or b"").decode()
        path = urllib.parse.urlsplit(address).path.lstrip("/") if "://" in address else address
        link = session.links[frame.handle] = Link(self, channel, frame.handle, path, bool(frame.role))
        refused, properties = None, None
        try:
            properties = self._resolve(link, frame, source)
        except Refused as reason:
            refused = reason
        answer = performatives.AttachFrame(
            frame.name.decode(), frame.handle, not frame.role, frame.send_settle_mode, frame.rcv_settle_mode,
            endpoints.Source(address=(source.address or b"").decode()),
            endpoints.Target(address=(target.address or b"").decode()),
            None, None, 0 if frame.role else None, MESSAGE_BYTES_MAX, None, None, properties,
        )  # fmt: skip
        self._send(answer, channel)
        if refused is not None:
            self.detach(link, refused)
        elif not frame.role:
            self._grant(session, link)
        elif link.partition is not None:
            self._spawn(self._deliver_events(session, link))

    def _resolve(self, link: Link, frame: Any, source: Any) -> dict[bytes, Any] | None:
        """Find the target of a link. Returns the properties of the answer."""
        if link.path == "$cbs" or (link.path == "$management" and self._is_authorized):
            return None
        if not self._is_authorized:
            raise Refused(b"amqp:unauthorized-access", "Unauthorized access. 'Listen' claim(s) are required.")
        form = r"([^/]+)/ConsumerGroups/([^/]+)/Partitions/(\d+)" if frame.role else r"([^/]+)(?:()/Partitions/(\d+))?"
        found = re.fullmatch(form, link.path)
        hub = self.server.hubs.get(found[1]) if found else None
        if found is None or hub is None or int(found[3] or 0) >= len(hub.partitions):
            raise Refused(b"amqp:not-found", f"The messaging entity '{link.path}' could not be found.")
        if not frame.role:
            link.hub, link.number = hub, found[3]
            return None
        return self._add_reader(link, hub.partitions[int(found[3])], found[2], frame, source)

    def _add_reader(
        self, link: Link, partition: Partition, group: str, frame: Any, source: Any
    ) -> dict[bytes, Any] | None:
        link.group = group
        link.epoch = (frame.properties or {}).get(b"com.microsoft:epoch")
        others = [other for other in partition.readers if other.group == group]
        highest = max((other.epoch for other in others if other.epoch is not None), default=None)
        if highest is not None and (link.epoch is None or link.epoch < highest):
            raise Refused(
                b"amqp:link:stolen",
                f"Receiver '{frame.name.decode()}' with a higher epoch of '{highest}' already exists. "
                f"Receiver with epoch {link.epoch} cannot be created.",
            )
        if link.epoch is None and len(others) >= READERS_MAX:
            raise Refused(b"amqp:resource-limit-exceeded", "Exceeded the maximum number of allowed receivers.")
        if link.epoch is not None:
            stolen = f"New receiver with higher epoch of '{link.epoch}' is created, this receiver is disconnected."
            for other in others:
                other.connection.detach(other, Refused(b"amqp:link:stolen", stolen))
        selector = (source.filters or {}).get(b"apache.org:selector-filter:string") or b""
        link.partition, link.next = partition, partition.place(selector.decode())
        partition.readers.add(link)
        return None if link.epoch is None else {b"com.microsoft:epoch": _long(link.epoch)}

    def _grant(self, session: Session, link: Link) -> None:
        """Let a sender send."""
        frame = performatives.FlowFrame(
            session.received, _WINDOW, session.sent, _WINDOW, link.handle, link.delivered, _CREDIT,
            None, None, None, None,
        )  # fmt: skip
        self._send(frame, link.channel)

    # Messages to the client

    def _deliver(self, session: Session, link: Link, payload: bytes) -> None:
        size = self._frame_bytes - 512
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        tag = uuid.uuid4().bytes
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces)
            frame = performatives.TransferFrame(
                link.handle, session.sent, tag, 0, False, more, None, None, None, None, None, piece
            )
            self._send(frame, link.channel)
        session.sent += 1
        link.delivered += 1
        link.credit -= 1

    async def _deliver_events(self, session: Session, link: Link) -> None:
        partition = link.partition
        assert partition is not None
        while link.open:
            link.next = max(link.next, partition.first)
            while link.open and link.credit > 0 and link.next <= partition.last:
                payload = _encoded(partition.events[link.next - partition.first])
                self._deliver(session, link, payload)
                link.next += 1
                await self.writer.drain()
            link.wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(link.wake.wait(), 1)

    # Messages from the client

    def _transfer(self, session: Session, link: Link, frame: Any) -> None:
        link.received += bytes(frame.payload)
        if frame.delivery_id is not None:
            link.delivery_id, link.format = frame.delivery_id, frame.message_format
        if frame.more:
            return
        payload, link.received = link.received, b""
        session.received = link.delivery_id + 1
        link.delivered += 1
        outcome: Any = outcomes.Accepted()
        if link.hub is None:
            self._answer(session, link, decode_payload(memoryview(payload)))
        elif len(payload) > MESSAGE_BYTES_TAKEN:
            outcome = outcomes.Rejected(error.AMQPError(b"amqp:link:message-size-exceeded", "too large", None))
        else:
            _append(link.hub, link.number, payload, is_batch=link.format == BATCH_FORMAT)
        done = performatives.DispositionFrame(True, link.delivery_id, link.delivery_id, True, outcome, None)
        self._send(done, link.channel)
        if link.delivered % 100 == 0:
            self._grant(session, link)

    def _answer(self, session: Session, link: Link, request: Message) -> None:
        """Answer a request to `$cbs` or `$management` on the link back."""
        asked = {_text(name): _text(value) for name, value in (request.application_properties or {}).items()}
        value: dict[str, Any] | None = None
        if link.path == "$cbs":
            signed = asked.get("type") == "jwt" or self.server.is_signed(_text(request.value))
            self._is_authorized = self._is_authorized or signed
            status, text = (
                (202, "Accepted") if signed else (401, "InvalidSignature: The token has an invalid signature.")
            )
        else:
            value = self._described(asked)
            status, text = (200, "OK") if value else (404, f"The messaging entity '{asked}' could not be found.")
        properties: dict[str, Any] = {"status-code": _typed(AMQPTypes.int, status), "status-description": text}
        message_id = request.properties.message_id if request.properties else None
        answer = encode_payload(
            bytearray(), Message(properties=Properties(correlation_id=message_id), application_properties=properties)
        )
        if value is not None:
            encode_value(answer, _typed(AMQPTypes.described, (_typed(AMQPTypes.ulong, 0x77), _map(value))))
        back = next(other for other in session.links.values() if other.to_client and other.path == link.path)
        self._deliver(session, back, bytes(answer))

    def _described(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of `$management` about a hub or a partition. None: it does not exist."""
        hub = self.server.hubs.get(asked.get("name", ""))
        if hub is None:
            return None
        self.server.asked[asked["type"]] += 1
        about: dict[str, Any] = {"name": asked["name"], "type": asked["type"]}
        if asked["type"] == "com.microsoft:eventhub":
            numbers = [_string(str(number)) for number in range(len(hub.partitions))]
            return about | {
                "created_at": _time(hub.created),
                "partition_count": _typed(AMQPTypes.int, len(numbers)),
                "partition_ids": _typed(AMQPTypes.array, numbers),
            }
        if int(asked["partition"]) >= len(hub.partitions):
            return None
        partition = hub.partitions[int(asked["partition"])]
        newest = partition.events[-1] if partition.events else None
        return about | {
            "partition": asked["partition"],
            "begin_sequence_number": _long(partition.first),
            "last_enqueued_sequence_number": _long(partition.last),
            "last_enqueued_offset": newest.offset if newest else "-1",
            "last_enqueued_time_utc": _time(newest.time if newest else 0),
            "is_partition_empty": newest is None,
        }


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _map(values: dict[str, Any]) -> dict[str, Any]:
    pairs = [
        (_string(name), value if isinstance(value, dict) else {TYPE: None, VALUE: value})
        for name, value in values.items()
    ]
    return _typed(AMQPTypes.map, pairs)


def _encoded(event: Event) -> bytes:
    """The event as its reader gets it: with the annotations of the service."""
    annotations = dict(event.message.message_annotations or {}) | {
        b"x-opt-sequence-number": _long(event.sequence),
        b"x-opt-offset": _string(event.offset),
        b"x-opt-enqueued-time": _time(event.time),
    }
    if event.key is not None:
        annotations[b"x-opt-partition-key"] = _string(event.key)
    return bytes(encode_payload(bytearray(), event.message._replace(message_annotations=annotations)))


def _append(hub: Hub, number: str | None, payload: bytes, *, is_batch: bool) -> None:
    """Append a message, or the messages that each data section of a batch is."""
    message = decode_payload(memoryview(payload))
    key = _text((message.message_annotations or {}).get(b"x-opt-partition-key"))
    messages = [decode_payload(memoryview(data)) for data in message.data] if is_batch else [message]
    hub.choose(number, key).append(messages, key)


@contextmanager
def eventhubs() -> Iterator[EventHubsServer]:
    """A server on a free port of 127.0.0.1."""
    server = EventHubsServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
