"""Run several brokers on one host: one child process per broker, with a shared registry, supervised by this process.

    broker i of N: data in <data>/broker-<node id>, and ports that are i higher than those of the first broker

A broker that exits is restarted, and the brokers end when this process ends (`headrace.server.child_process`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import msgspec

from headrace import __version__
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.runtime.permissions import FOLDER_MODE
from headrace.server.banner import command_name, print_banner
from headrace.server.child_process import HEADRACE, ChildProcess, print_line, run_children
from headrace.server.data_layout import broker_folder, reject_single_broker_folder
from headrace.server.settings import SHARED_REGISTRY, Address, ServeSettings, show_address

STOP_SECONDS = 60.0
PORT_MAX = 65535


class BrokersSettings(msgspec.Struct, frozen=True):
    """`first` has the settings of all brokers; its node id and ports are those of the first broker."""

    count: int
    first: ServeSettings

    def check(self) -> None:
        self.first.check()
        addresses = {"--kafka": self.first.kafka, "--http": self.first.http, "--advertised": self.first.advertised}
        for name, (_, port) in ((name, address) for name, address in addresses.items() if address is not None):
            if port and port + self.count - 1 > PORT_MAX:
                raise InvalidConfig(
                    f"{name} requires {self.count} consecutive ports up to {PORT_MAX}; specify a smaller port"
                )
        (kafka_host, kafka), (http_host, http) = self.first.kafka, self.first.http
        if kafka_host == http_host and kafka and http and abs(kafka - http) < self.count:
            raise InvalidConfig(
                f"the ports of --kafka and --http must be at least {self.count} apart, one for each broker"
            )
        reject_single_broker_folder(self.first.data, [one.node_id for one in self.each()])

    def each(self) -> list[ServeSettings]:
        first = self.first
        return [
            msgspec.structs.replace(
                first,
                data=broker_folder(first.data, first.node_id + number),
                kafka=_offset_port(first.kafka, number),
                http=_offset_port(first.http, number),
                advertised=None if first.advertised is None else _offset_port(first.advertised, number),
                node_id=first.node_id + number,
                registry=f"{SHARED_REGISTRY}{os.path.join(first.data, 'registry.db')}",
                is_child=True,
            )
            for number in range(self.count)
        ]


def run_brokers(settings: BrokersSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings.check()
        os.makedirs(settings.first.data, FOLDER_MODE, exist_ok=True)
        return 0 if asyncio.run(_run(settings, os.path.abspath(settings.first.data))) else 1
    except (HeadraceError, OSError) as error:
        print_line(f"error: {error.message if isinstance(error, HeadraceError) else error}")
        return 1


async def _run(settings: BrokersSettings, data: str) -> bool:
    brokers = [ChildProcess(f"broker {one.node_id}", command(one), STOP_SECONDS) for one in settings.each()]
    return await run_children(brokers, _announce(brokers, data))


async def _announce(brokers: Sequence[ChildProcess], data: str) -> None:
    for broker in brokers:
        await broker.is_ready.wait()
    ready = [broker.ready_fields for broker in brokers]
    kafka, http, nodes = (",".join(fields[name] for fields in ready) for name in ("kafka", "http", "node"))
    sys.stdout.write(f"ready kafka={kafka} http={http} nodes={nodes} version={__version__}\n")
    sys.stdout.flush()
    print_banner(
        f"""Headrace {__version__} runs {len(brokers)} broker{"s" if len(brokers) > 1 else ""} on this host
  Their data is in {data}
  Kafka clients connect to {kafka}
  The HTTP API is at {http}, and its documentation at /docs
  Try in another terminal:
    {command_name()} cluster info --server {kafka}"""
    )


def command(settings: ServeSettings) -> list[str]:
    """Return the command line of `headrace serve` with these settings."""
    certificate, key = settings.http_tls or (None, None)
    options = {
        "--data": settings.data,
        "--kafka": show_address(*settings.kafka),
        "--http": show_address(*settings.http),
        "--node-id": str(settings.node_id),
        "--session-timeout": str(settings.session_timeout_seconds),
        "--log-level": settings.log_level,
        "--log-format": settings.log_format,
        "--registry": settings.registry,
        "--rack": settings.rack,
        "--advertised": None if settings.advertised is None else show_address(*settings.advertised),
        "--http-tls-cert": certificate,
        "--http-tls-key": key,
    }
    flags = {
        "--auth": settings.auth,
        "--open-metrics": settings.open_metrics,
        "--push-private": settings.push_private,
        "--insecure": settings.insecure,
    }
    words = [*HEADRACE, "serve", "--child"]
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    words += [word for name in settings.http_hosts for word in ("--http-host", name)]
    words += [word for name, value in settings.broker.items() for word in ("--set", f"{name}={value}")]
    return words + [flag for flag, is_set in flags.items() if is_set]


def _offset_port(address: Address, number: int) -> Address:
    """Add to the port, except for port 0, with which the system chooses a port for each broker."""
    host, port = address
    return host, port + number if port else 0
