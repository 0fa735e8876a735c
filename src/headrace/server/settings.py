"""The settings of `headrace serve` and `headrace gateway`: data folder, listeners, access control, broker configs.

Broker configs come from the `[broker]` table of a TOML file and from `--set NAME=VALUE`, which takes precedence.
"""

from __future__ import annotations

import errno
from typing import Literal, Self

import msgspec

from headrace.model.broker_configs import flatten
from headrace.model.errors import InvalidConfig

DEFAULT_DATA = "headrace-data"
DEFAULT_KAFKA = ("127.0.0.1", 9092)
DEFAULT_HTTP = ("127.0.0.1", 8080)
DEFAULT_SESSION_SECONDS = 6.0

SHARED_REGISTRY = "sqlite:"
"""The URL prefix of a registry that brokers on this host share, followed by the path of its file."""

Address = tuple[str, int]
LogFormat = Literal["text", "json"]


class ServeSettings(msgspec.Struct, frozen=True):
    """`http_hosts` are names that HTTP clients use in addition to those in `http` and `advertised`. `http_tls` are the
    files of a certificate and its key. `auth` requires access tokens over HTTP. `push_private` allows push to private
    addresses. `is_child` marks a child process of `--brokers`, which exits at the end of its standard input."""

    data: str = DEFAULT_DATA
    kafka: Address = DEFAULT_KAFKA
    http: Address = DEFAULT_HTTP
    http_hosts: tuple[str, ...] = ()
    node_id: int = 1
    rack: str | None = None
    registry: str | None = None
    session_timeout_seconds: float = DEFAULT_SESSION_SECONDS
    advertised: Address | None = None
    broker: dict[str, str] = msgspec.field(default_factory=dict)
    http_tls: tuple[str, str] | None = None
    auth: bool = False
    open_metrics: bool = False
    push_private: bool = False
    insecure: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"
    is_child: bool = False

    def named_hosts(self) -> tuple[str, ...]:
        """All host names that HTTP clients use for this broker."""
        advertised = () if self.advertised is None else (self.advertised[0],)
        return (self.http[0], *advertised, *self.http_hosts)

    def check(self) -> None:
        """Reject settings that expose the broker to other hosts by accident: the Kafka listener has neither TLS nor
        authentication yet."""
        if self.advertised is not None and self.advertised[0] in ("0.0.0.0", "::"):
            raise InvalidConfig(f"--advertised {self.advertised[0]} is not an address that clients can connect to")
        if self.insecure:
            return
        host, _ = self.kafka
        if not is_loopback(host):
            raise InvalidConfig(
                f"--kafka {host} is reachable from other hosts without TLS and authentication; "
                "listen on 127.0.0.1, or use --insecure if the network is trusted"
            )
        reject_open_http(self.http, has_tls=self.http_tls is not None, has_auth=self.auth)


def reject_open_http(address: Address, *, has_tls: bool, has_auth: bool) -> None:
    """Require TLS and authentication for an address that is reachable from other hosts."""
    host, _ = address
    missing = [name for name, is_set in (("TLS", has_tls), ("authentication", has_auth)) if not is_set]
    if missing and not is_loopback(host):
        raise InvalidConfig(
            f"--http {host} is reachable from other hosts without {' and '.join(missing)}; specify --auth, "
            "--http-tls-cert and --http-tls-key, listen on 127.0.0.1, or use --insecure if the network is trusted"
        )


def tls_files(certificate: str | None, key: str | None) -> tuple[str, str] | None:
    """Return the files of `--http-tls-cert` and `--http-tls-key`, or None if neither is given."""
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is None and key is None:
        return None
    raise InvalidConfig("--http-tls-cert and --http-tls-key require each other; specify both")


def parse_address(text: str, what: str) -> Address:
    """Parse `host:port` or `[::1]:9092`; with port 0 the system chooses the port."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidConfig(f"{what} must be HOST:PORT, not '{text}'")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    from ipaddress import ip_address  # not needed with the defaults: keeps startup fast

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_config_file(path: str) -> dict[str, str]:
    """Read the broker configs in the `[broker]` table, under Kafka's names."""
    import tomllib  # not needed without a file: keeps startup fast

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not valid TOML: {error}") from None
    unknown = sorted(set(table) - {"broker"})
    if unknown:
        raise InvalidConfig(f"{path}: unknown table [{unknown[0]}]; broker configs belong in [broker]")
    broker = table.get("broker", {})
    if not isinstance(broker, dict):
        raise InvalidConfig(f"{path}: broker must be a table")
    return flatten(broker)


GatewaySide = Literal["publish", "subscribe"]


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`side` is None for both publishers and subscribers. `http_hosts` are names that clients use in addition to the
    one in `http`. `tls` are the files of a certificate and its key."""

    bootstrap: str
    http: Address
    http_hosts: tuple[str, ...] = ()
    side: GatewaySide | None = None
    auth: bool = False
    open_metrics: bool = False
    tls: tuple[str, str] | None = None
    push_private: bool = False
    insecure: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"

    @classmethod
    def from_options(cls, *, bootstrap: str, http: str, tls: tuple[str | None, str | None], **others: object) -> Self:
        """Build from command-line options; raise `InvalidConfig`."""
        from headrace.client.connections.address import parse_addresses

        try:
            parse_addresses(bootstrap)
        except ValueError as error:
            raise InvalidConfig(f"--bootstrap: {error}") from None
        return msgspec.convert(
            {"bootstrap": bootstrap, "http": parse_address(http, "--http"), "tls": tls_files(*tls), **others}, cls
        )

    def check(self) -> None:
        """Reject settings that expose the gateway to other hosts by accident."""
        if not self.insecure:
            reject_open_http(self.http, has_tls=self.tls is not None, has_auth=self.auth)


def listen_error(option: str, address: Address, error: OSError) -> InvalidConfig:
    if error.errno == errno.EADDRINUSE:
        return InvalidConfig(
            f"address {show_address(*address)} is in use; stop the other server, or choose another one with {option}"
        )
    return InvalidConfig(
        f"cannot listen on {show_address(*address)}: {error.strerror or error}; choose another address with {option}"
    )
