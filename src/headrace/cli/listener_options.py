"""The options of every process with an HTTP listener: authentication, TLS and logging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False)
_OPTIONS = (
    click.option("--auth", is_flag=True, help="Require an access token for every HTTP request; see `headrace token`."),
    click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token even with --auth."),
    click.option(
        "--http-host",
        "http_hosts",
        metavar="NAME",
        multiple=True,
        help="A host name that HTTP clients use for this server; repeatable. Without --auth, requests to other host "
        "names are rejected.",
    ),
    click.option("--http-tls-cert", metavar="FILE", type=_FILE, help="Serve HTTPS with this certificate (PEM)."),
    click.option("--http-tls-key", metavar="FILE", type=_FILE, help="The private key of the certificate (PEM)."),
    click.option("--push-private", is_flag=True, help="Allow push to private addresses."),
    click.option(
        "--insecure",
        is_flag=True,
        help="Allow listening on other than loopback addresses without TLS and authentication.",
    ),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


def listener_options(command: F) -> F:
    for option in reversed(_OPTIONS):  # decorators apply bottom up
        command = option(command)
    return command
