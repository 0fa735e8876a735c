"""The settings of `headrace serve` and `headrace gateway`: data folder, listeners, access control, broker configs.

Broker configs come from the `[broker]` table of a TOML file and from `--set NAME=VALUE`, which takes precedence.
"""

from __future__ import annotations

import errno
from typing import Literal, Self

import msgspec

from headrace.model.broker_configs import flatten
from headrace.model.errors import InvalidConfig

SHARED_REGISTRY = "sqlite:"
"""The URL prefix of a registry that brokers on this host share, followed by the path of its file."""

Address = tuple[str, int]
LogFormat = Literal["text", "json"]


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What brokers and gateways have in common. `http_hosts` are names that HTTP clients use in addition to the one in
    `http`. `http_tls` are the files of a certificate and its key. `auth` requires access tokens over HTTP.
    `push_private` allows push to private addresses."""

    http: Address = ("127.0.0.1", 8080)
    http_hosts: tuple[str, ...] = ()
    http_tls: tuple[str, str] | None = None
    auth: bool = False
    open_metrics: bool = False
    push_private: bool = False
    insecure: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"

    def named_hosts(self) -> tuple[str, ...]:
        """All host names that HTTP clients use for this server."""
        return (self.http[0], *self.http_hosts)

    def check(self) -> None:
        """Reject settings that expose the server to other hosts by accident."""
        host, _ = self.http
        missing = [name for name, is_set in (("TLS", self.http_tls), ("authentication", self.auth)) if not is_set]
        if missing and not self.insecure and not is_loopback(host):
            raise InvalidConfig(
                f"--http {host} is reachable from other hosts without {' and '.join(missing)}; specify --auth, "
                "--http-tls-cert and --http-tls-key, listen on 127.0.0.1, or use --insecure if the network is trusted"
            )


class ServeSettings(HttpSettings, frozen=True, kw_only=True):
    """`is_child` marks a child process of `--brokers`, which exits at the end of its standard input."""

    data: str = "headrace-data"
    kafka: Address = ("127.0.0.1", 9092)
    node_id: int = 1
    rack: str | None = None
    registry: str | None = None
    session_timeout_seconds: float = 6.0
    advertised: Address | None = None
    broker: dict[str, str] = msgspec.field(default_factory=dict)
    is_child: bool = False

    def named_hosts(self) -> tuple[str, ...]:
        return super().named_hosts() if self.advertised is None else (*super().named_hosts(), self.advertised[0])

    def check(self) -> None:
        """Reject unsafe settings, too: the Kafka listener has neither TLS nor authentication yet."""
        if self.advertised is not None and self.advertised[0] in ("0.0.0.0", "::"):
            raise InvalidConfig(f"--advertised {self.advertised[0]} is not an address that clients can connect to")
        host, _ = self.kafka
        if not self.insecure and not is_loopback(host):
            raise InvalidConfig(
                f"--kafka {host} is reachable from other hosts without TLS and authentication; "
                "listen on 127.0.0.1, or use --insecure if the network is trusted"
            )
        super().check()


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


class GatewaySettings(HttpSettings, frozen=True, kw_only=True):
    """`side` is None for both publishers and subscribers."""

    bootstrap: str
    side: GatewaySide | None = None

    @classmethod
    def from_options(cls, *, bootstrap: str, http: str, tls: tuple[str | None, str | None], **others: object) -> Self:
        """Build from command-line options; raise `InvalidConfig`."""
        from headrace.client.connections.address import parse_addresses

        try:
            parse_addresses(bootstrap)
        except ValueError as error:
            raise InvalidConfig(f"--bootstrap: {error}") from None
        return msgspec.convert(
            {"bootstrap": bootstrap, "http": parse_address(http, "--http"), "http_tls": tls_files(*tls), **others}, cls
        )


def listen_error(option: str, address: Address, error: OSError) -> InvalidConfig:
    if error.errno == errno.EADDRINUSE:
        return InvalidConfig(
            f"address {show_address(*address)} is in use; stop the other server, or choose another one with {option}"
        )
    return InvalidConfig(
        f"cannot listen on {show_address(*address)}: {error.strerror or error}; choose another address with {option}"
    )
