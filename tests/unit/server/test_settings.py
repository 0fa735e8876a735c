"""Settings of `headrace serve`: addresses, the rule about other hosts, and the config file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.model.errors import InvalidConfig
from headrace.server.settings import ServeSettings, is_loopback, parse_address, read_config_file, tls_files


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9092", ("::1", 9092)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("broker-1.example.org:9092", ("broker-1.example.org", 9092)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--kafka") == address


@pytest.mark.parametrize(
    "text", ["", "9092", ":9092", "localhost", "localhost:", "localhost:x", "host:65536", "[::1]", "host:-1", "host:²"]
)
def test_invalid_addresses_are_rejected_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--kafka must be HOST:PORT"):
        parse_address(text, "--kafka")


def test_only_addresses_of_this_host_are_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.9.10", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "example.org", "localhost.example.org"]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_addresses_cannot_be_advertised(host: str) -> None:
    with pytest.raises(InvalidConfig, match="not an address that clients can connect to"):
        ServeSettings(advertised=(host, 9092), insecure=True).check()


def test_the_default_settings_are_safe() -> None:
    ServeSettings().check()


@pytest.mark.parametrize("option", ["kafka", "http"])
def test_listening_for_other_hosts_must_be_explicit(option: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"--{option} 0.0.0.0 .* --insecure"):
        ServeSettings(**{option: ("0.0.0.0", 1)}).check()  # type: ignore[arg-type]
    ServeSettings(**{option: ("0.0.0.0", 1)}, insecure=True).check()  # type: ignore[arg-type]


def test_http_may_listen_for_other_hosts_with_tls_and_tokens() -> None:
    safe = ServeSettings(http=("0.0.0.0", 1), http_tls=("cert", "key"), auth=True)
    safe.check()
    with pytest.raises(InvalidConfig, match="without TLS; specify --auth"):
        msgspec.structs.replace(safe, http_tls=None).check()
    with pytest.raises(InvalidConfig, match="without authentication; specify --auth"):
        msgspec.structs.replace(safe, auth=False).check()
    with pytest.raises(InvalidConfig, match="without TLS and authentication"):
        msgspec.structs.replace(safe, auth=False, http_tls=None).check()
    with pytest.raises(InvalidConfig, match=r"--kafka 0.0.0.0"):
        msgspec.structs.replace(safe, kafka=("0.0.0.0", 1)).check()


def test_certificate_and_key_require_each_other() -> None:
    assert tls_files("cert", "key") == ("cert", "key")
    assert tls_files(None, None) is None
    for pair in (("cert", None), (None, "key")):
        with pytest.raises(InvalidConfig, match="require each other"):
            tls_files(*pair)


def write(folder: Path, content: bytes) -> str:
    path = folder / "headrace.toml"
    path.write_bytes(content)
    return str(path)


def test_a_config_file_has_kafkas_names_dotted_quoted_or_nested(tmp_path: Path) -> None:
    content = b"""
[broker]
"num.partitions" = 4
log.retention.hours = 1
auto.create.topics.enable = false
cleanup = "x"
"""
    assert read_config_file(write(tmp_path, content)) == {
        "num.partitions": "4",
        "log.retention.hours": "1",
        "auto.create.topics.enable": "false",
        "cleanup": "x",
    }


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_config_file(write(tmp_path, b"")) == {}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"broker = [", "is not valid TOML"),
        (b"[broker]\nx = \xff\n", "is not valid TOML"),
        (b"[topics]\nx = 1\n", r"unknown table \[topics\]"),
        (b"broker = 3\n", "broker must be a table"),
        (b"[broker]\nx = 2020-01-01\n", "Invalid value"),
    ],
)
def test_an_invalid_config_file_is_rejected_with_the_reason(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        read_config_file(write(tmp_path, content))


def test_a_missing_config_file_or_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read .*no-such\.toml: No such file"):
        read_config_file(str(tmp_path / "no-such.toml"))
    with pytest.raises(InvalidConfig, match=r"cannot read .*: Is a directory"):
        read_config_file(str(tmp_path))
