"""What `headrace serve` is told: where to keep data, where to listen, and which broker configs to set.

Settings by Kafka's names come from a TOML file's `[broker]` table and from `--set NAME=VALUE`, the latter winning.
"""

from __future__ import annotations

import msgspec

from headrace.model.broker_configs import flatten
from headrace.model.errors import InvalidConfig

DEFAULT_DATA = "headrace-data"
DEFAULT_KAFKA = ("127.0.0.1", 9092)
DEFAULT_HTTP = ("127.0.0.1", 8080)
DEFAULT_SESSION_SECONDS = 6.0

SHARED_REGISTRY = "sqlite:"
"""How a registry is named that brokers on this host share: followed by the path of its file."""

Address = tuple[str, int]


class ServeSettings(msgspec.Struct, frozen=True):
    """`is_child`: one of several that another process looks after. It ends when its standard input does."""

    data: str = DEFAULT_DATA
    kafka: Address = DEFAULT_KAFKA
    http: Address = DEFAULT_HTTP
    node_id: int = 1
    rack: str | None = None
    registry: str | None = None
    session_timeout_seconds: float = DEFAULT_SESSION_SECONDS
    advertised: Address | None = None
    broker: dict[str, str] = msgspec.field(default_factory=dict)
    insecure: bool = False
    log_level: str = "info"
    is_child: bool = False

    def check(self) -> None:
        """Refuse to be reachable from other hosts by accident: this version has neither TLS nor authentication."""
        for name, (host, _) in (("--kafka", self.kafka), ("--http", self.http)):
            if not self.insecure and not is_loopback(host):
                raise InvalidConfig(
                    f"{name} {host} is reachable from other hosts, without TLS and authentication; "
                    "listen on 127.0.0.1, or say --insecure if the network is trusted"
                )


def parse_address(text: str, what: str) -> Address:
    """`host:port`, also `[::1]:9092`; port 0 lets the system choose."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidConfig(f"{what} must be HOST:PORT, not '{text}'")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    from ipaddress import ip_address  # a start on the defaults does not wait for it

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_config_file(path: str) -> dict[str, str]:
    """Broker configs of the `[broker]` table, under Kafka's names."""
    import tomllib  # a start without a file does not wait for it

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from None
    unknown = sorted(set(table) - {"broker"})
    if unknown:
        raise InvalidConfig(f"{path}: unknown table [{unknown[0]}]; broker configs stand in [broker]")
    broker = table.get("broker", {})
    if not isinstance(broker, dict):
        raise InvalidConfig(f"{path}: broker must be a table")
    return flatten(broker)
