"""Random structured requests to the REST application: most are valid, some almost, some not at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec

from headrace.http.message import Request
from headrace.http.routes import Route

JSON = "application/json"
BATCH = "application/vnd.headrace.messages+json"

_JUNK: list[Any] = [
    *("", " ", "*", "..", "/", "%00", "a" * 300, "\u2028", "\x00", "null", "-1", "1e400", "NaN", "'; drop", "ä" * 50),
    *(0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 1.5, True, False, None, [], {}, [[]], {"a": {"b": []}}, "x" * 5000),
]
_JUNK_TEXT = [value for value in _JUNK if isinstance(value, str)]
# No configs whose effect comes later by a timer: the change would be attributed to the next request.
_DELAYS = ["30d", "365d", "-1", "soon", "1e400", "nan", "P30D"]
_TIMES = ["2099-01-01T00:00:00Z", "tomorrow", "9" * 30, "2099-13-01T00:00:00Z"]
_REPEATS = ["every 300d", "0 0 1 1 *", "every 0s", "* * * *", "every", "0 0 31 2 *", "*,*,*,*,* 0 1 1 *"]
_TIMED = ("delay", "deliver_at", "deliver-at", "repeat")
_WAITS = ["0", "10ms", "50ms", "-1", "61s", "x"]
_FILTERS = ["key = 'a'", "key like '%a%'", "tags has 'x'", "(", "key = ", "key like '" + "%_" * 40 + "'", "1 = 1"]
_TOPIC_CONFIGS = ["retention.ms", "max.message.bytes", "dedup.window.ms", "cleanup.policy", "no.such", "segment.bytes"]
_CONFIGS = [
    *("headrace.filter", "headrace.rate", "headrace.push.url", "headrace.push.topics", "share.session.timeout.ms"),
    *("share.delivery.count.limit", "headrace.key.concurrency", "headrace.priority.slack.ms", "no.such", ""),
    *("headrace.dead.letters.enable", "share.record.lock.duration.ms", "consumer.session.timeout.ms"),
]
_MESSAGE_HEADERS = [
    *("headrace-reply-to", "headrace-dead-topic", "headrace-correlation-id", "headrace-dedup-id", "x-a", ""),
    *("headrace-redriven", "Headrace-Reply-To", "headrace-tags"),
]
_SETTLEMENTS = ("ack", "nack", "reject", "extend")
_SEEN_MAX = 500
_KEYED_MAX = 10
_URLS = ["https://example.com/hook", "http://user:pw@x/", "ftp://x/", "http://[::1", "http://169.254.169.254/", ""]


class SeenMessage(NamedTuple):
    """The id or receipt of a message, with the topic and subscription of the request path."""

    text: str
    topic: str
    subscription: str


class KeyedPublish(NamedTuple):
    """A publish request with an Idempotency-Key. `body` is a list of messages for a batch."""

    topic: str
    key: str
    body: Any


class Tenant:
    """A tenant, the ids and receipts that it received, and its publish requests with an Idempotency-Key."""

    def __init__(self, name: str, hidden: str, secret: str) -> None:
        self.name = name
        self.hidden = hidden
        self.secret = secret
        self.token = ""
        self.named_topics = [f"{name}.jobs", f"{name}.mails"]
        self.topics = [*self.named_topics, f"{name}.{hidden}"]
        self.tokens: dict[bool, str] = {}
        """Tokens with and without the scope for the topic that changes owners."""
        self.subscriptions = ["workers", "workers", "workers", "invoices", f"{name}-own"]
        self.keyed: list[KeyedPublish] = []
        self.seen: dict[str, list[SeenMessage]] = {"message_id": [], "receipt": []}

    def learn(self, request: Request, body: bytes) -> None:
        topic = request.params.get("topic") or request.query.get("topic", "")
        for kind, seen in self.seen.items():
            for part in body.split(b'"%s":"' % kind.encode())[1:4]:
                seen.append(
                    SeenMessage(part.partition(b'"')[0].decode(), topic, request.params.get("subscription", ""))
                )
            del seen[:-_SEEN_MAX]


class Requests:
    """Draws requests of a tenant: most concern its own topics, others those of other tenants."""

    def __init__(self, random: Random, table: list[Route]) -> None:
        self._random = random
        self._table = table
        self._weights = [_weight(route) for route in table]
        self._target: Tenant  # the tenant whose topics, ids and receipts the request contains
        self._sender: Tenant

    def draw(self, sender: Tenant, others: list[Tenant]) -> Request:
        random = self._random
        self._sender = sender
        self._target = sender if random.random() < 0.85 else random.choice(others)
        (route,) = random.choices(self._table, self._weights)
        topic, subscription = self._topic(), self._subscription()
        is_settling = route.pattern.rpartition("/")[2] in _SETTLEMENTS and route.method == "POST"
        seen = self._seen("receipt" if is_settling else "message_id")
        if ("{message_id}" in route.pattern or is_settling) and seen.topic and random.random() < 0.9:
            topic, subscription = seen.topic, seen.subscription or subscription
        path = route.pattern.replace("{topic}", topic).replace("{subscription}", subscription)
        path = path.replace("{message_id}", seen.text)
        query: dict[str, str] = {}
        headers = {"authorization": sender.token} if random.random() < 0.98 else {}
        for parameter in route.operation.parameters:
            name = parameter.name
            if parameter.where == "query" and name == "topic":
                if random.random() < 0.95:
                    query[name] = topic
            elif parameter.where == "query" and random.random() < 0.15:
                query[name] = str(self._value(name))
            elif parameter.where == "header" and random.random() < 0.04:
                headers[name.lower()] = _latin(self._value(name.removeprefix("Headrace-").lower()))
        if random.random() < (0.5 if path.endswith("/stream") else 0.01):
            headers["upgrade"] = "websocket"
        if random.random() < 0.05:
            headers[f"headrace-header-{random.choice(_MESSAGE_HEADERS).lower()}"] = _latin(self._topic())
        body = self._body(route.method, path, headers, seen)
        if route.method == "POST" and route.pattern == "/topics/{topic}/messages" and random.random() < 0.3:
            return self._keyed(topic)
        method = route.method if random.random() < 0.98 else random.choice(["HEAD", "PUT", "OPTIONS", "X"])
        if random.random() < 0.02:
            path = _bent(path, random)
        return Request(method, path, query, headers, body, "10.0.0.1", "request")

    def _keyed(self, topic: str) -> Request:
        """Return a publish request with an Idempotency-Key: new, repeated, or reused for other messages."""
        random, sender = self._random, self._sender
        if sender.keyed and random.random() < 0.7:
            topic, key, body = random.choice(sender.keyed)
            change = random.choice(["none", "none", "longer", "shorter", "reversed", "single", "batch", "other"])
            messages = body if _is_batch(body) else [{"value": body}]
            body = {
                "none": body,
                "longer": [*messages, {"value": [sender.secret, random.random()]}],
                "shorter": messages[:-1] or messages,
                "reversed": messages[::-1],
                "single": messages[0]["value"],
                "batch": messages,
                "other": [sender.secret, random.random()],
            }[change]
        else:
            key = random.choice(["k1", "k2", "k3", "k4"])
            count = random.choice([0, 1, 2, 3, 40])
            values = [[sender.secret, random.choice([1, random.random()])] for _ in range(count or 1)]
            body = [{"value": value} for value in values] if count else values[0]
            sender.keyed.append(KeyedPublish(topic, key, body))
            del sender.keyed[:-_KEYED_MAX]
        is_batch = _is_batch(body)
        headers = {
            "authorization": sender.token,
            "content-type": BATCH if is_batch else JSON,
            "idempotency-key": key,
        }
        content = msgspec.json.encode({"messages": body} if is_batch else body)
        return Request("POST", f"/topics/{topic}/messages", {}, headers, content, "10.0.0.1", "request")

    def frame(self) -> str | bytes:
        """Return the frames that a WebSocket receives."""
        random = self._random
        if random.random() < 0.2:
            broken: list[str | bytes] = ["", "{", "[]", b"\xff", '{"ack": 1}', '{"ack": []}', "null"]
            return random.choice(broken)
        how = random.choice(_SETTLEMENTS)
        texts = [self._seen("receipt").text, self._seen("receipt").text]
        return msgspec.json.encode({how: random.choice([texts[0], texts])}).decode()

    def _body(self, method: str, path: str, headers: dict[str, str], seen: SeenMessage) -> bytes:
        random = self._random
        if method not in ("POST", "PATCH", "PUT"):
            return b""
        if random.random() < 0.05:
            headers["content-type"] = random.choice([JSON, BATCH, "text/plain", "application/octet-stream", "a;b"])
            return random.choice([b"", b"{", b"[" * 2000, b"\xff\xfe", b"null", b'{"a":1,"a":2}', random.randbytes(50)])
        headers["content-type"] = JSON
        body = self._shaped(path, headers, seen)
        if random.random() < 0.1 and isinstance(body, dict):
            body[random.choice([*body, "more"])] = random.choice(_JUNK_TEXT if "/scheduled/" in path else _JUNK)
        return msgspec.json.encode(body)

    def _shaped(self, path: str, headers: dict[str, str], seen: SeenMessage) -> Any:
        random = self._random
        leaf = path.rpartition("/")[2]
        shapes: dict[str, Callable[[], Any]] = {
            "messages": lambda: self._publish(headers),
            "subscriptions": self._new_subscription,
            "push": lambda: {"url": random.choice(_URLS), **({"secret": "s"} if random.random() < 0.3 else {})},
            "seek": lambda: {"to": random.choice(["start", "end", 0, 5, 10**9, "2020-01-01T00:00:00Z", "x"])},
            "redrive": lambda: self._chosen({"to": self._topic()}),
            "discard": lambda: self._chosen({}),
            "topics": lambda: {"name": self._topic(), "partitions": random.choice([1, 2, 2, 0, -1, 10**9])},
        }
        if leaf in shapes:
            return shapes[leaf]()
        if leaf in _SETTLEMENTS:
            return self._settlement(seen)
        if "/subscriptions/" in path:
            return {"configs": self._configs(_CONFIGS)}
        if "/scheduled/" in path:
            return {random.choice(["delay", "deliver_at"]): random.choice(_DELAYS + _TIMES)}
        return {"configs": self._configs(_TOPIC_CONFIGS)}

    def _publish(self, headers: dict[str, str]) -> Any:
        random, secret = self._random, self._sender.secret
        if random.random() < 0.6:
            return random.choice([secret, [secret, 1], {"deep": {"er": [secret]}}, {secret: None}])
        headers["content-type"] = BATCH
        messages: list[dict[str, Any]] = []
        for _ in range(random.choice([0, 1, 1, 2, 5, 40])):
            message: dict[str, Any] = {"value": secret}
            for name in ("key", "partition", "delay", "deliver_at", "repeat", "priority", "ttl", "content_type"):
                if random.random() < 0.06:
                    message[name] = self._value(name)
            if random.random() < 0.1:
                message["headers"] = {random.choice(_MESSAGE_HEADERS): self._topic()}
            messages.append(message)
        return {"messages": messages}

    def _new_subscription(self) -> dict[str, Any]:
        random = self._random
        (start,) = random.choices(["earliest", "latest", "x"], [6, 3, 1])
        body: dict[str, Any] = {"name": self._subscription(), "start": start}
        if random.random() < 0.4:
            body["configs"] = self._configs(_CONFIGS)
        if random.random() < 0.2:
            body["push"] = {"url": random.choice(_URLS)}
        return body

    def _configs(self, names: list[str]) -> dict[str, Any]:
        values = [*_FILTERS, 0, 1, 5, 30_000, 10**12, True, None, "delete", "compact", self._topic()]
        return {self._random.choice(names): self._random.choice(values) for _ in range(self._random.randrange(3))}

    def _settlement(self, seen: SeenMessage) -> Any:
        random = self._random
        texts = [seen.text, *(self._seen("receipt").text for _ in range(random.choice([0, 0, 2])))]
        more = {"delay": random.choice(_DELAYS), "reason": "r"}
        (body,) = random.choices([{"receipts": texts}, {"receipts": texts, **more}, {"receipt": texts}], [8, 2, 1])
        return body

    def _chosen(self, more: dict[str, Any]) -> dict[str, Any]:
        """Return a selection of dead letters."""
        random = self._random
        body: dict[str, Any] = more if random.random() < 0.2 else {}
        which = {"message_ids": [self._seen("message_id").text], "filter": random.choice(_FILTERS), "all": True}
        for name in random.choices([*which, "ids"], k=random.choice([0, 1, 1, 2])):
            body[name] = which.get(name, [])
        return body

    def _value(self, name: str) -> Any:
        random = self._random
        if random.random() < 0.1:
            return random.choice(_JUNK_TEXT if name in _TIMED else _JUNK)
        known: dict[str, list[Any]] = {
            "topic": self._target.named_topics,
            "wait": _WAITS,
            "timeout": ["10ms", "50ms", "x"],
            "wait_for": ["reply", "reply", "reply", "x"],
            "lease": ["100ms", "30s", "12h", "13h", "x"],
            "filter": _FILTERS,
            "delay": _DELAYS,
            "deliver_at": _TIMES,
            "deliver-at": _TIMES,
            "repeat": _REPEATS,
            "ttl": ["1h", "x", "-1"],
            "tags": ["a,b", ","],
            "accept": ["application/octet-stream", "text/event-stream", "x"],
            "key": ["a", "b", "ä"],
            "partition": [0, 1, 99, "x"],
            "priority": [0, 9, 10],
            "max_messages": [1, 10, 0, 10**6],
            "after": [self._seen("message_id").text, "x"],
            "idempotency-key": ["k1", "k2", "k3", "x" * 300],
        }
        return random.choice(known.get(name, [0, 1, 5, 100, "x"]))

    def _topic(self) -> str:
        random, target = self._random, self._target
        if random.random() < 0.04:
            return random.choice([text for text in _JUNK_TEXT if "/" not in text])
        if random.random() < 0.1:
            return random.choice([f"{target.name}.new", f"{target.name}.jobs.dlq", f"__acks.{target.name}.jobs"])
        return random.choice(target.topics if target is self._sender else target.named_topics)

    def _subscription(self) -> str:
        return self._random.choice(self._target.subscriptions) if self._random.random() < 0.97 else "new\nline"

    def _seen(self, kind: str) -> SeenMessage:
        target = self._target
        known = target.seen[kind]
        if known and self._random.random() < 0.95:
            seen = self._random.choice(known)
            if target is self._sender or target.hidden not in seen.text + seen.topic:
                return seen
        return SeenMessage(self._random.choice(["x", "a:0:0", "a:0:0/1/0/m", "", ":::", "__acks.a:0:0/1/0/m"]), "", "")


def _is_batch(body: Any) -> bool:
    return isinstance(body, list) and all(isinstance(message, dict) for message in body)


def _weight(route: Route) -> float:
    """Return the weights of the routes: deletions are rare, and routes without parameters need few inputs."""
    leaf = route.pattern.rpartition("/")[2]
    if route.method == "DELETE" and leaf in ("{topic}", "{subscription}"):
        return 0.2
    if "{" not in route.pattern:
        return 0.2
    if leaf in ("dead-letters", "redrive"):
        return 2.0
    return 3.0 if leaf == "messages" else 1.0


def _bent(path: str, random: Random) -> str:
    at = random.randrange(len(path) + 1)
    return path[:at] + random.choice(["/", "//", "%2F", "..", "\x00", "{topic}", "ä", "?"]) + path[at:]


def _latin(value: Any) -> str:
    return str(value).encode("latin-1", "replace").decode("latin-1")
