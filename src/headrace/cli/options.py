"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

from headrace.model.safe_text import escaped

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

SERVER_DEFAULT = "127.0.0.1:9092"


_FILE = click.Path(exists=True, dir_okay=False)
_LOGGING_OPTIONS = (
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)
_LISTENER_OPTIONS = (
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
    *_LOGGING_OPTIONS,
)


class ParsedType(click.ParamType[T]):
    """The type of an option whose text `parse` converts. A ValueError of `parse` becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return cast("T", value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def server_option(command: Command) -> Command:
    return click.option(
        "--server",
        "--bootstrap-server",
        "server",
        envvar="HEADRACE_SERVER",
        default=SERVER_DEFAULT,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        callback=_check_server,
        help="Bootstrap brokers, separated by commas.",
    )(command)


def yes_option(command: Command) -> Command:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def dry_run_option(command: Command) -> Command:
    return click.option("--dry-run", is_flag=True, help="Show what would be done, but change nothing.")(command)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation of a destructive operation; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Use --yes to confirm without a terminal")
    click.confirm(escaped(question), abort=True, err=True)


def listener_options(command: Command) -> Command:
    """Add the options of every process with an HTTP listener: authentication, TLS and logging."""
    return _with_options(command, _LISTENER_OPTIONS)


def logging_options(command: Command) -> Command:
    return _with_options(command, _LOGGING_OPTIONS)


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse the pairs; the last one of a name applies."""
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{text!r} is invalid; write NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):  # decorators apply bottom up
        command = option(command)
    return command


def _check_server(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from headrace.client.connections.address import parse_addresses  # `serve` starts without the client

    try:
        parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    return value
