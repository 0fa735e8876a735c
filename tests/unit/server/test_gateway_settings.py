"""A gateway checks its options before it starts, and is not exposed to other hosts by accident."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.errors import InvalidConfig
from headrace.server.settings import GatewaySettings


def settings(**options: Any) -> GatewaySettings:
    return GatewaySettings.from_options(
        **{"bootstrap": "127.0.0.1:9092", "http": "127.0.0.1:8080", "tls": (None, None), **options}
    )


def test_options_become_settings() -> None:
    options = settings(side="publish", auth=True, log_format="json", push_private=True, bootstrap="a:1,b:2")
    assert (options.http, options.side, options.auth, options.bootstrap) == (
        ("127.0.0.1", 8080),
        "publish",
        True,
        "a:1,b:2",
    )
    assert (options.log_format, options.push_private, options.http_tls) == ("json", True, None)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"http": "0.0.0.0:8080"}, "TLS and authentication"),
        ({"http": "0.0.0.0:8080", "auth": True}, "without TLS;"),
        ({"http": "[::]:8080", "tls": ("cert", "key")}, "without authentication;"),
    ],
    ids=str,
)
def test_accidental_exposure_to_other_hosts_is_rejected(options: dict[str, Any], missing: str) -> None:
    with pytest.raises(InvalidConfig, match=missing):
        settings(**options).check()


@pytest.mark.parametrize(
    "options",
    [
        {"tls": ("cert", None)},
        {"tls": (None, "key")},
        {"bootstrap": ""},
        {"bootstrap": "host:port"},
        {"http": "8080"},
    ],
    ids=str,
)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        settings(**options).check()


@pytest.mark.parametrize(
    "options",
    [
        {"http": "0.0.0.0:8080", "insecure": True},
        {"http": "0.0.0.0:8080", "auth": True, "tls": ("cert", "key")},
        {"http": "[::1]:8080"},
        {"http": "localhost:0"},
    ],
    ids=str,
)
def test_safe_or_explicit_settings_are_accepted(options: dict[str, Any]) -> None:
    settings(**options).check()
