"""Send messages to webhooks over HTTP. Failures of a receiver are outcomes, never exceptions.

- A receiver is not trusted: redirects are not followed, certificates are verified, cookies and compression are not
  accepted, only so much of a response is read that its connection can be used again, and `timeout_ms` bounds the whole
  exchange.
- Connections go to public addresses only, unless private ones are allowed. Anybody who may set a webhook can make this
  process connect to a host of their choice, so the address of each connection is checked when its socket is created,
  whatever the host name resolved to before.
- No error message contains an address: the owner of the webhook reads it, and would learn what internal names resolve
  to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Protocol

from headrace import __version__
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.push.webhook import DeliveryOutcome, outcome_of, unanswered_outcome, undelivered_outcome, webhook_headers
from headrace.runtime.clock import Clock
from headrace.wire.messages.queues import DescribedPush

if TYPE_CHECKING:
    import aiohttp


_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_PLATFORM_SERVICES = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
"""Public by their ranges, but served by the cloud platform itself: Azure's WireServer, Oracle's metadata service."""
_IPV4_MASK = 0xFFFFFFFF


class ForbiddenAddress(OSError):
    """The receiver has a private address, and private addresses are not allowed."""


def is_public(address: str) -> bool:
    """Whether this is an address of the public internet. IPv6 addresses that embed an IPv4 address are judged by it."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _TRANSLATED:
            inner = IPv4Address(int(found) & _IPV4_MASK)
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local:
            return False
    if any(found in network for network in _PLATFORM_SERVICES):
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def public_socket(address_info: tuple[Any, ...]) -> socket.socket:
    """Create a socket for an entry of getaddrinfo; raises `ForbiddenAddress` if the address is not public."""
    family, kind, protocol, _, address = address_info
    if not is_public(address[0]):
        raise ForbiddenAddress(
            "the receiver is not a public address, and private ones are allowed only by --push-private"
        )
    return socket.socket(family, kind, protocol)


log = logging.getLogger(__name__)

_RESPONSE_BYTES_MAX = 64 << 10
_HEADER_BYTES_MAX = 16 << 10
_ERROR_LENGTH_MAX = 200
_CONNECT_PART = 0.5
_IDLE_SECONDS = 4.0  # some receivers close idle connections after 5 s


class MessageSender(Protocol):
    async def send(self, push: DescribedPush, message: LeasedMessage) -> DeliveryOutcome: ...

    async def close(self) -> None: ...


class WebhookSender:
    """Shared by all webhooks of a process, with its connections. Created by `open_sender`."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock

    async def close(self) -> None:
        await self._session.close()

    async def send(self, push: DescribedPush, message: LeasedMessage) -> DeliveryOutcome:
        import aiohttp

        now_ms = self._clock.now_ms()
        try:
            async with asyncio.timeout(push.timeout_ms / 1000):
                return await self._post(push, message, now_ms // 1000)
        except aiohttp.ConnectionTimeoutError:
            return undelivered_outcome("cannot connect: nobody answers")
        except TimeoutError:
            return unanswered_outcome(f"no answer within {push.timeout_ms} ms")
        except aiohttp.ClientConnectorError as error:
            log.debug("connecting to a webhook failed subscription=%s error=%s", push.subscription, error)
            return undelivered_outcome(f"cannot connect: {_connect_failure(error)}")
        except aiohttp.ClientConnectionError as error:
            return unanswered_outcome(f"the connection broke: {_error_text(error)}")
        except ValueError as error:  # InvalidURL, or UnicodeError for a host name that cannot be looked up
            return undelivered_outcome(f"the URL cannot be used: {_error_text(error)}")
        except aiohttp.ClientError as error:
            return unanswered_outcome(_error_text(error))

    async def _post(self, push: DescribedPush, message: LeasedMessage, now_seconds: int) -> DeliveryOutcome:
        import aiohttp

        # A part of the timeout is for connecting, so that a timeout tells whether anything was sent.
        timeout = aiohttp.ClientTimeout(total=None, connect=push.timeout_ms / 1000 * _CONNECT_PART)
        headers = webhook_headers(push, message, now_seconds)
        async with self._session.post(
            push.url, data=message.value or b"", headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            left = _RESPONSE_BYTES_MAX
            while left > 0 and (read := await response.content.read(left)):
                left -= len(read)
            if left <= 0:
                response.close()  # do not read the rest
            return outcome_of(response.status, response.headers.get("retry-after"))


async def open_sender(clock: Clock, *, allows_private: bool) -> WebhookSender:
    # Importing aiohttp would block the event loop for too long.
    await asyncio.to_thread(__import__, "aiohttp")
    import aiohttp

    connector = aiohttp.TCPConnector(
        limit=0,
        use_dns_cache=False,
        keepalive_timeout=_IDLE_SECONDS,
        socket_factory=None if allows_private else public_socket,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"Headrace/{__version__}", "Accept-Encoding": "identity"},
        max_line_size=_HEADER_BYTES_MAX,
        max_field_size=_HEADER_BYTES_MAX,
    )
    return WebhookSender(session, clock)


def _connect_failure(error: aiohttp.ClientConnectorError) -> str:
    """The reason without any address. A name that does not resolve and one that resolves to a private address get the
    same message, because the difference would reveal which internal names exist."""
    cause = getattr(error, "os_error", None)  # with a bad certificate there is none
    if cause is None or isinstance(cause, ssl.SSLError):
        return _error_text(cause or error)
    if isinstance(cause, ForbiddenAddress | socket.gaierror):
        return "the host does not resolve, or is not a public address; private ones need --push-private"
    return os.strerror(cause.errno) if cause.errno else "no address of the host accepts it"


def _error_text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_ERROR_LENGTH_MAX]
