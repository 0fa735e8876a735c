"""Run several brokers on one host: one child process per broker, with a shared registry, supervised by this process.

    broker i of N: data in <data>/broker-<node id>, and ports that are i higher than those of the first broker

A broker that exits is restarted. If one exits three times in a row shortly after its start, all brokers are stopped.
The standard input of each child is a pipe from this process: when this process ends for any reason, the children read
the end of the pipe and shut down gracefully.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from headrace import __version__
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.runtime.clock import SystemClock
from headrace.runtime.permissions import FOLDER_MODE
from headrace.server.banner import command_name, print_banner
from headrace.server.data_layout import broker_folder, reject_single_broker_folder
from headrace.server.settings import SHARED_REGISTRY, Address, ServeSettings, show_address

QUICK_EXIT_SECONDS = 10.0
QUICK_EXITS_MAX = 3
BACK_OFF_SECONDS = 0.5
STOP_SECONDS = 60.0
PORT_MAX = 65535
ORDERLY_EXIT_CODES = (0, -signal.SIGTERM)
"""The exit statuses of a broker that was requested to stop; SIGTERM kills it if its handler is not installed yet."""

# -P: do not import modules from the working directory.
_BOOT = ("-P", "-c", "import sys; from headrace.cli.main import main; sys.exit(main())")


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
        return (
            0
            if asyncio.run(_run([BrokerProcess(one) for one in settings.each()], os.path.abspath(settings.first.data)))
            else 1
        )
    except (HeadraceError, OSError) as error:
        _print_line(f"error: {error.message if isinstance(error, HeadraceError) else error}")
        return 1


async def _run(brokers: Sequence[BrokerProcess], data: str) -> bool:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        supervised = [group.create_task(broker.supervise(stop)) for broker in brokers]
        announcing = group.create_task(_announce(brokers, data))
        await stop.wait()
        announcing.cancel()
    return all(task.result() for task in supervised)


async def _announce(brokers: Sequence[BrokerProcess], data: str) -> None:
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


class BrokerProcess:
    """A child process. `ready_fields` are the key=value pairs of its last `ready` line."""

    def __init__(self, settings: ServeSettings) -> None:
        self.is_ready = asyncio.Event()
        self.ready_fields: dict[str, str] = {}
        self._settings = settings
        self._clock = SystemClock()

    async def supervise(self, stop: asyncio.Event) -> bool:
        """Run and restart it until all brokers are stopped; return whether it then shut down gracefully."""
        quick_exits = 0
        while True:
            started = self._clock.monotonic()
            status = await self._run(stop)
            if stop.is_set():
                return status in ORDERLY_EXIT_CODES
            is_quick = self._clock.monotonic() - started < QUICK_EXIT_SECONDS
            quick_exits = quick_exits + 1 if is_quick else 0
            if quick_exits == QUICK_EXITS_MAX:
                _print_line(
                    f"error: {self._name} exited {quick_exits} times in a row, status={status}; stopping all brokers"
                )
                stop.set()
                return False
            seconds = BACK_OFF_SECONDS * 2**quick_exits
            _print_line(f"warning: {self._name} exited, status={status}; restarting it in {seconds:.1f} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()
                    return True

    async def _run(self, stop: asyncio.Event) -> int:
        """Run it once; return its exit status."""
        process = await asyncio.create_subprocess_exec(
            *command(self._settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process only, which then stops its children
        )
        assert process.stdout is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_output(process.stdout))
            ended = group.create_task(process.wait())
            stopping = group.create_task(stop.wait())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not ended.done():
                await self._terminate(process, ended)
        return ended.result()

    async def _terminate(self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
            await asyncio.wait((ended,), timeout=STOP_SECONDS)
            if not ended.done():
                _print_line(f"warning: {self._name} did not stop within {STOP_SECONDS:.0f} s; killing it")
                process.kill()

    async def _read_output(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            name, *fields = line.decode().split()
            if name == "ready":
                self.ready_fields = dict(field.split("=", 1) for field in fields)
                if self.is_ready.is_set():
                    _print_line(f"{self._name} is up again")
                self.is_ready.set()

    @property
    def _name(self) -> str:
        return f"broker {self._settings.node_id}"


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
    words = [sys.executable, *_BOOT, "serve", "--child"]
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    words += [word for name in settings.http_hosts for word in ("--http-host", name)]
    words += [word for name, value in settings.broker.items() for word in ("--set", f"{name}={value}")]
    return words + [flag for flag, is_set in flags.items() if is_set]


def _offset_port(address: Address, number: int) -> Address:
    """Add to the port, except for port 0, with which the system chooses a port for each broker."""
    host, port = address
    return host, port + number if port else 0


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
