"""`headrace serve`: run one or several brokers in the foreground. Flags override the file, the file the defaults."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import click

from headrace.cli.options import listener_options, parse_settings, usage_errors

_NODE_ID_MAX = (1 << 31) - 1  # the maximum in the Kafka protocol


@click.command()
@click.option("--data", metavar="DIR", default="headrace-data", show_default=True, help="The data folder.")
@click.option("--kafka", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="The Kafka listener.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="The listener for REST, health and metrics.",
)
@click.option(
    "--node-id", type=click.IntRange(0, _NODE_ID_MAX), default=1, show_default=True, help="The id of this broker."
)
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(1, 64),
    help="Run a cluster of this many brokers on this host. Each uses the next node id and the next ports.",
)
@click.option("--rack", metavar="NAME", help="The broker's rack; replicas are spread over racks.")
@click.option(
    "--registry",
    metavar="URL",
    help="The registry of the cluster: zookeeper://HOST:PORT[,HOST:PORT]/PATH, or sqlite:FILE for brokers on one host. "
    "Default: a file in --data.",
)
@click.option(
    "--session-timeout",
    metavar="SECONDS",
    type=click.FloatRange(1.0, 300.0),
    default=6.0,
    show_default=True,
    help="How long the registry waits for an unresponsive broker before other brokers take over.",
)
@click.option("--advertised", metavar="HOST:PORT", help="The address that clients connect to; default: --kafka.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker config under Kafka's name; repeatable.",
)
@click.option("--config", metavar="FILE.toml", type=click.Path(exists=True, dir_okay=False), help="[broker] configs.")
@listener_options
@click.option("--child", is_flag=True, hidden=True, help="A child of --brokers: exit at the end of stdin.")
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
    http_tls_cert: str | None,
    http_tls_key: str | None,
    child: bool,
    **listener: Any,
) -> int:
    """Start one or several brokers.

    Prints one line that begins with `ready` when it accepts requests. SIGTERM or Ctrl-C shuts it down gracefully.
    """
    if brokers is not None and registry is not None:
        raise click.UsageError("--brokers and --registry exclude each other: --brokers uses a registry in --data")
    from headrace.model.broker_configs import BrokerConfig
    from headrace.server.settings import ServeSettings, parse_address, read_config_file, tls_files

    with usage_errors():
        serve_settings = ServeSettings(
            data=data,
            kafka=parse_address(kafka, "--kafka"),
            http=parse_address(http, "--http"),
            node_id=node_id,
            rack=rack,
            registry=registry,
            session_timeout_seconds=session_timeout,
            advertised=None if advertised is None else parse_address(advertised, "--advertised"),
            broker=(read_config_file(config) if config else {}) | parse_settings(settings),
            http_tls=tls_files(http_tls_cert, http_tls_key),
            is_child=child,
            **listener,
        )
        BrokerConfig.from_settings(serve_settings.broker)
    if brokers is not None:
        from headrace.server.broker_processes import BrokersSettings, run_brokers

        return run_brokers(BrokersSettings(brokers, serve_settings))
    # Imported objects are never garbage: excluding them makes garbage collections shorter.
    gc.disable()
    from headrace.server.serve import serve as run_server

    gc.freeze()
    gc.enable()
    return run_server(serve_settings)
