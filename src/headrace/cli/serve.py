"""`headrace serve`: a broker, or several, in the foreground. Flags win over the file, the file over the defaults."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.door_options import door_options
from headrace.cli.settings import parse_settings
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.server.settings import LogFormat, ServeSettings

_NODE_ID_MAX = (1 << 31) - 1  # what Kafka's protocol can say


@click.command()
@click.option("--data", metavar="DIR", default="headrace-data", show_default=True, help="Where records are kept.")
@click.option("--kafka", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="Kafka's protocol.")
@click.option(
    "--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="REST, health and metrics."
)
@click.option(
    "--node-id", type=click.IntRange(0, _NODE_ID_MAX), default=1, show_default=True, help="This broker's number."
)
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(1, 64),
    help="Run so many on this host: a cluster in one command. Each takes the next node id and the next ports.",
)
@click.option("--rack", metavar="NAME", help="Where it stands: replicas are spread over racks.")
@click.option(
    "--registry",
    metavar="URL",
    help="The cluster's registry, zookeeper://HOST:PORT[,HOST:PORT]/PATH, or sqlite:FILE for brokers on one host; "
    "else a file in --data.",
)
@click.option(
    "--session-timeout",
    metavar="SECONDS",
    type=click.FloatRange(1.0, 300.0),
    default=6.0,
    show_default=True,
    help="How long the registry waits for a broker before others take over.",
)
@click.option("--advertised", metavar="HOST:PORT", help="What clients are told to connect to; else --kafka.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker config by Kafka's name; repeatable.",
)
@click.option("--config", metavar="FILE.toml", type=click.Path(exists=True, dir_okay=False), help="[broker] configs.")
@door_options
@click.option("--child", is_flag=True, hidden=True, help="One of --brokers: end when standard input does.")
def serve(
    *,
    data: str,
    kafka: str,
    http: str,
    node_id: int,
    brokers: int | None,
    rack: str | None,
    registry: str | None,
    session_timeout: float,
    advertised: str | None,
    settings: Sequence[str],
    config: str | None,
    auth: bool,
    open_metrics: bool,
    http_hosts: Sequence[str],
    http_tls_cert: str | None,
    http_tls_key: str | None,
    push_private: bool,
    insecure: bool,
    log_level: str,
    log_format: LogFormat,
    child: bool,
) -> int:
    """Start a broker, or several.

    Prints one line that begins with `ready` when it serves. SIGTERM or Ctrl-C ends it in order.
    """
    if brokers is not None and registry is not None:
        raise click.UsageError("--brokers keeps a registry of its own in --data; leave out --registry")
    from headrace.server.settings import ServeSettings, parse_address, read_config_file, tls_files

    try:
        told = ServeSettings(
            data=data,
            kafka=parse_address(kafka, "--kafka"),
            http=parse_address(http, "--http"),
            http_hosts=tuple(http_hosts),
            node_id=node_id,
            rack=rack,
            registry=registry,
            session_timeout_seconds=session_timeout,
            advertised=None if advertised is None else parse_address(advertised, "--advertised"),
            broker=(read_config_file(config) if config else {}) | parse_settings(settings),
            http_tls=tls_files(http_tls_cert, http_tls_key),
            auth=auth,
            open_metrics=open_metrics,
            push_private=push_private,
            insecure=insecure,
            log_level=log_level,
            log_format=log_format,
            is_child=child,
        )
    except HeadraceError as error:
        raise click.UsageError(error.message) from None
    return _serve_one(told) if brokers is None else _serve_several(told, brokers)


def _serve_one(settings: ServeSettings) -> int:
    # Nothing that is imported is ever garbage, so the collector need not look at it, neither now nor later.
    gc.disable()
    from headrace.server.main import serve as run_server

    gc.freeze()
    gc.enable()
    return run_server(settings)


def _serve_several(first: ServeSettings, count: int) -> int:
    from headrace.server.brokers import BrokersSettings, run_brokers

    return run_brokers(BrokersSettings(count, first))
