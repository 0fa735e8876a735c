"""How a registry on ZooKeeper is named: `zookeeper://HOST:PORT[,HOST:PORT...]/PATH`."""

from __future__ import annotations

from headrace.model.errors import InvalidConfig

SCHEME = "zookeeper://"
DEFAULT_PORT = 2181


def parse_registry_url(text: str) -> tuple[str, str]:
    """The hosts, with their ports, and the path beneath which the cluster keeps everything."""
    hosts, slash, path = text.removeprefix(SCHEME).partition("/")
    names = path.split("/")
    if not text.startswith(SCHEME) or not hosts or not slash or any(name in ("", ".", "..") for name in names):
        raise InvalidConfig(f"a registry is named as zookeeper://HOST:PORT[,HOST:PORT...]/PATH, not '{text}'")
    return ",".join(_parse_host(host, text) for host in hosts.split(",")), f"/{path}"


def _parse_host(text: str, url: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise InvalidConfig(f"'{text}' in '{url}' is no HOST:PORT")
    return f"{host}:{port}"
