"""The options that every process with an HTTP door has: whom it lets in, and how it writes its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False)
_OPTIONS = (
    click.option("--auth", is_flag=True, help="Want an access token with every HTTP request; see `headrace token`."),
    click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token, also with --auth."),
    click.option(
        "--http-host",
        "http_hosts",
        metavar="NAME",
        multiple=True,
        help="A name by which HTTP clients reach this server; repeatable. Without --auth, others are refused.",
    ),
    click.option("--http-tls-cert", metavar="FILE", type=_FILE, help="Serve HTTPS by it."),
    click.option("--http-tls-key", metavar="FILE", type=_FILE, help="The key of that."),
    click.option("--push-private", is_flag=True, help="Allow webhooks to private addresses."),
    click.option("--insecure", is_flag=True, help="Allow other hosts in, without TLS and authentication."),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


def door_options(command: F) -> F:
    for option in reversed(_OPTIONS):  # as if they stood above it one by one
        command = option(command)
    return command
