"""Run a broker: build it from its settings, open its listeners, report readiness, and shut it down gracefully.

A failure of a background task, of a disk or of the registry ends the process with exit code 1: a restart is better than
a partially working broker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from math import inf

import uvloop

from headrace import __version__
from headrace.broker.broker import Broker, open_broker
from headrace.http.limits import HttpLimits, limits_of_connections
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import HeadraceError
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.runtime.permissions import exposure_warning
from headrace.runtime.process_resources import raise_open_files_limit
from headrace.runtime.tasks import BackgroundTaskDied, Supervisor
from headrace.server.banner import command_name, print_banner
from headrace.server.child_process import stop_with_parent
from headrace.server.data_layout import reject_multi_broker_folder
from headrace.server.event_loop import HANG_SECONDS, LoopWatchdog
from headrace.server.http_server import HttpServer
from headrace.server.metrics import BrokerMetrics
from headrace.server.open_registry import open_registry
from headrace.server.process_logging import configure
from headrace.server.settings import SHARED_REGISTRY, ServeSettings, listen_error, show_address

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0
_SWITCH_SECONDS = 0.0005
_DESCRIPTORS_PER_FILE = 2  # half of the descriptors are for log files
_DESCRIPTORS_PER_HTTP_CONNECTION = 8  # an eighth is for HTTP connections, including health probes
_DESCRIPTORS_PER_OWN = 8  # an eighth is for the broker's own connections, its registry, and connections that are being
# rejected; the rest is for Kafka clients


def serve(settings: ServeSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    # Name the broker where logs of several brokers are collected.
    is_one_of_many = settings.is_child or settings.log_format == "json"
    configure(settings.log_level, settings.log_format, f"broker-{settings.node_id}" if is_one_of_many else "")
    try:
        settings.check()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except asyncio.CancelledError:
        log.info("broker stopped before it was ready")
    except HeadraceError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    except OSError as error:
        what = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"error: {error.strerror or error}{what}\n")
        return 1
    except BackgroundTaskDied as error:
        sys.stderr.write(f"error: the broker stopped because its task '{error}' failed; see the log above\n")
        return 1
    return 0


async def _serve(settings: ServeSettings) -> None:
    # With the default switch interval of 5 ms, a disk thread that checks batches in Python would delay the event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    clock, entropy, network = SystemClock(), SystemEntropy(), SystemNetwork()
    descriptors = raise_open_files_limit()
    disk = SystemDisk(open_files_max=descriptors // _DESCRIPTORS_PER_FILE)
    supervisor = Supervisor()
    stop = asyncio.Event()
    starting = asyncio.current_task()
    assert starting is not None
    _on_signal(starting.cancel)  # recovery or an unreachable registry may take long; stopping now is as safe as a crash
    if settings.is_child:
        stop_with_parent(stop.set)

    reject_multi_broker_folder(settings.data)
    disk.make_directory(settings.data)
    registry = await open_registry(settings, disk, clock)
    _warn_of_exposed_files(settings)
    broker = await open_broker(
        settings.data,
        settings.node_id,
        settings.rack,
        settings.broker,
        registry,
        disk,
        network,
        clock,
        entropy,
        supervisor,
    )
    kafka_server = KafkaServer(
        "PLAINTEXT", broker.handlers, network, clock, _limits(broker.catalogue.config, descriptors)
    )
    _follow_limits(kafka_server, broker, descriptors)
    address = await _listen(kafka_server, settings)
    metrics = BrokerMetrics(broker, kafka_server, clock)
    http = HttpServer(settings, broker, metrics, _http_limits(descriptors), supervisor, disk, network, clock, entropy)
    metrics.http = http
    http_address = await http.listen()
    supervisor.spawn(kafka_server.run_sweeps(), "kafka connections")
    supervisor.spawn(LoopWatchdog(clock, HANG_SECONDS).run(), "watchdog")
    supervisor.spawn(metrics.loop_lag.run(), "loop lag")
    await broker.join(*address)
    kafka_server.start_accepting()
    await broker.cluster.wait_for_leaders()
    http.open()
    _freeze_garbage_collector()
    _on_signal(stop.set)
    _announce(settings, broker, *http_address)
    try:
        await _wait_for_stop(stop, supervisor)
    finally:
        await _shut_down(broker, kafka_server, http, supervisor)


def _warn_of_exposed_files(settings: ServeSettings) -> None:
    """Warn if other users can read files. The mode of the data folder protects everything in it; check a shared
    registry, which is outside of it, separately."""
    paths = [os.path.abspath(settings.data)]
    if settings.registry is not None and settings.registry.startswith(SHARED_REGISTRY):
        paths.append(os.path.abspath(settings.registry.removeprefix(SHARED_REGISTRY)))
    for path in paths:
        warning = exposure_warning(path)
        if warning is not None:
            log.warning("%s", warning)


def _on_signal(callback: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, callback)


async def _listen(kafka_server: KafkaServer, settings: ServeSettings) -> tuple[str, int]:
    """Listen, and return the address to advertise: an IPv4 one, since clients may resolve `localhost` to ::1."""
    try:
        host, port = await kafka_server.listen(*settings.kafka)
    except OSError as error:
        raise listen_error("--kafka", settings.kafka, error) from error
    if settings.advertised is not None:
        return settings.advertised
    return ("127.0.0.1" if host in ("0.0.0.0", "::") else host), port


async def _wait_for_stop(stop: asyncio.Event, supervisor: Supervisor) -> None:
    """Wait for a signal; raise if a background task fails first."""
    died: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            failure = group.create_task(supervisor.failure())
            waiting = group.create_task(stop.wait())
            await asyncio.wait((failure, waiting), return_when=asyncio.FIRST_COMPLETED)
            failure.cancel()
            waiting.cancel()
    except* BackgroundTaskDied as group_of_one:
        (died,) = group_of_one.exceptions
    if died is not None:
        raise died


async def _shut_down(broker: Broker, kafka_server: KafkaServer, http: HttpServer, supervisor: Supervisor) -> None:
    await http.begin_shutdown()
    await broker.cluster.transfer_leadership()
    kafka_server.stop_listening()
    http.listener.stop_listening()
    broker.complete_waiting_requests()
    async with asyncio.TaskGroup() as group:
        group.create_task(kafka_server.drain(_DRAIN_SECONDS))
        group.create_task(http.listener.drain(_DRAIN_SECONDS))
    await http.close()
    await supervisor.stop()
    await broker.stop()
    log.info("broker stopped")


def _freeze_garbage_collector() -> None:
    """Tune the garbage collector: exclude the objects that exist now, which live as long as the process, and collect
    less often. Messages contain no cycles, so reference counting frees them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _follow_limits(kafka_server: KafkaServer, broker: Broker, descriptors: int) -> None:
    """Apply changed limits to new connections."""

    def follow(config: BrokerConfig) -> None:
        kafka_server.limits = _limits(config, descriptors)

    broker.catalogue.on_config_change.append(follow)


def _limits(config: BrokerConfig, descriptors: int) -> ListenerLimits:
    return ListenerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        budget_bytes=config.queued_max_request_bytes,
        connections_max=min(config.max_connections, _kafka_share(descriptors)),
        connections_per_host_max=config.max_connections_per_ip,
        idle_seconds=inf if config.connections_max_idle_ms < 0 else config.connections_max_idle_ms / 1000,
    )


def _kafka_share(descriptors: int) -> int:
    others = (_DESCRIPTORS_PER_FILE, _DESCRIPTORS_PER_HTTP_CONNECTION, _DESCRIPTORS_PER_OWN)
    return descriptors - sum(descriptors // other for other in others)


def _http_limits(descriptors: int) -> HttpLimits:
    defaults = HttpLimits()
    share = descriptors // _DESCRIPTORS_PER_HTTP_CONNECTION
    return limits_of_connections(min(share, defaults.connections_max + defaults.connections_reserved))


def _announce(settings: ServeSettings, broker: Broker, http_host: str, http_port: int) -> None:
    """Print the `ready` line for scripts, and on a terminal commands to try."""
    server = show_address(broker.identity.host, broker.identity.port)
    http = show_address(http_host, http_port)
    url = f"{'http' if settings.http_tls is None else 'https'}://{http}"
    sys.stdout.write(f"ready kafka={server} http={http} node={settings.node_id} version={__version__}\n")
    sys.stdout.flush()
    log.info("broker is ready data=%s kafka=%s http=%s", os.path.abspath(settings.data), server, http)
    if settings.is_child or not sys.stderr.isatty():
        return
    command = command_name()
    default = "" if server == "127.0.0.1:9092" else f" --server {server}"
    bearer = f"$({command} token create me --scope 'publish:*' -o table{default})"
    token = f' -H "Authorization: Bearer {bearer}"' if settings.auth else ""
    print_banner(
        f"""Headrace {__version__} stores its data in {os.path.abspath(settings.data)}
  Kafka clients connect to {server}; the HTTP API is documented at {url}/docs
  Try in another terminal:
    echo hello | {command} produce greetings{default}
    curl{token} --json '{{"hello": "world"}}' {url}/topics/greetings/messages
    {command} consume greetings -o start -e{default}"""
    )
