"""A worker process: an application's handlers, its health pages and metrics, and its shutdown.

- SIGTERM or SIGINT stops it gracefully: it leases no more messages, releases those that it has prefetched, and lets the
  handlers in progress finish. After `grace_seconds`, or at a second signal, it releases their messages too, and exits.
- It waits for a cluster that is not reachable, at its start and later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

import msgspec
import uvloop

from headrace import __version__
from headrace.http.limits import limits_of_connections
from headrace.http.listener import HttpListener
from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.protocols.health.pages import HEALTH_PATHS, PATHS, HealthPages
from headrace.runtime.clock import SystemClock
from headrace.runtime.entropy import SystemEntropy
from headrace.sdk.async_client import AsyncClient
from headrace.server.child_process import stop_with_parent
from headrace.server.event_loop import LoopLag
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.process import add_process
from headrace.server.process_logging import configure
from headrace.server.settings import Address, LogFormat, is_loopback, listen_error, show_address
from headrace.worker.app import App
from headrace.worker.runner import Runner

log = logging.getLogger(__name__)

_HEALTH_CONNECTIONS = 64
_RELEASE_SECONDS = 5.0


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`application` is MODULE:APP. `processes` limits the processes for handlers with `process=True`."""

    application: str
    server: str
    concurrency: int
    processes: int
    grace_seconds: float
    health: Address | None
    insecure: bool
    log_level: str
    log_format: LogFormat
    is_child: bool = False
    """Stop when the parent process ends."""

    def check(self) -> None:
        if self.health is not None and not self.insecure and not is_loopback(self.health[0]):
            raise InvalidConfig(
                f"--health {self.health[0]} is reachable from other hosts, and names topics in its metrics; listen on "
                "127.0.0.1, or use --insecure if the network is trusted"
            )


def load_app(text: str) -> App:
    """Import `module:name`. Modules are looked up in the working directory first."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise InvalidConfig(f"{text!r} does not name an application; write MODULE:APP, for example tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # an import inside the module failed: its traceback says where
        raise InvalidConfig(
            f"there is no module {module_name!r} in {os.getcwd()} or on the module search path"
        ) from None
    app = getattr(module, name, None)
    if not isinstance(app, App):
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        others = f"; it has {', '.join(apps)}" if apps else "; it has none"
        raise InvalidConfig(f"module {module_name!r} has no headrace.worker.App named {name!r}{others}")
    if not app.subscribers and not app.schedules:
        raise InvalidConfig(f"{text} has no handlers; decorate functions with @{name}.subscriber(topic)")
    return app


def run_worker(settings: WorkerSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings.check()
        configure(settings.log_level, settings.log_format)
        app = load_app(settings.application)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            is_graceful = runner.run(AppProcess(app, settings).run())
    except HeadraceError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    except ExceptionGroup as group:
        errors, rest = group.split(HeadraceError)
        if rest is not None or errors is None:
            raise
        sys.stderr.write(f"error: {_first(errors)}\n")
        return 1
    if not is_graceful:  # a handler that blocks its thread would keep the interpreter from exiting
        sys.stderr.flush()
        os._exit(1)
    return 0


class AppProcess:
    def __init__(self, app: App, settings: WorkerSettings) -> None:
        self._app = app
        self._settings = settings
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._lag = LoopLag(self._clock)
        self._health = HealthPages(self)
        self._stop_count = 0
        self._killed = asyncio.Event()

    async def run(self) -> bool:
        """Return whether all handlers ended in time."""
        settings = self._settings
        async with AsyncClient(settings.server, client_id=f"worker-{self._app.name}") as client:
            self._runner = Runner(
                self._app, client, settings.server, concurrency=settings.concurrency, processes=settings.processes
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)
            if settings.is_child:
                stop_with_parent(self._stop)
            listener = await self._listen()
            lag = asyncio.get_running_loop().create_task(self._lag.run(), name="loop lag")
            try:
                self._health.is_ready = True
                self._announce()
                return await self._run_handlers()
            finally:
                lag.cancel()
                if listener is not None:
                    listener.stop_listening()
                    await listener.drain(0.0)

    async def _run_handlers(self) -> bool:
        loop = asyncio.get_running_loop()
        running = loop.create_task(self._runner.run(), name="handlers")
        killed = loop.create_task(self._killed.wait(), name="kill")
        try:
            await asyncio.wait((running, killed), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
                return True
            log.warning("handlers did not end in time, releasing their messages")
            running.cancel()
            with suppress(asyncio.CancelledError):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await running
            return False
        except TimeoutError:
            return False
        finally:
            killed.cancel()

    def _stop(self) -> None:
        self._stop_count += 1
        self._health.is_ready = False
        if self._stop_count == 1:
            log.info("worker stops grace_s=%.1f", self._settings.grace_seconds)
            self._runner.stop()
            asyncio.get_running_loop().call_later(self._settings.grace_seconds, self._killed.set)
        else:
            self._killed.set()

    def _announce(self) -> None:
        subscriptions = ",".join(f"{one.topic}/{one.subscription}" for one in self._app.subscribers)
        schedules = ",".join(self._app.schedules)
        sys.stdout.write(
            f"ready app={self._app.name} subscriptions={subscriptions} schedules={schedules} version={__version__}\n"
        )
        sys.stdout.flush()

    # Health pages

    async def _listen(self) -> HttpListener | None:
        address = self._settings.health
        if address is None:
            return None
        limits = limits_of_connections(_HEALTH_CONNECTIONS)
        listener = HttpListener(_WorkerPages(self._health), limits, self._clock, SystemEntropy(), HEALTH_PATHS)
        try:
            host, port = await listener.listen(*address, None)
        except OSError as error:
            raise listen_error("--health", address, error) from error
        log.info("health pages http=%s", show_address(host, port))
        return listener

    def checks(self) -> dict[str, str | None]:
        return {"subscriptions": "; ".join(f"{where}: {why}" for where, why in self._runner.outages.items()) or None}

    async def page(self) -> bytes:
        out = Exposition()
        add_process(out, self._clock, self._started, self._lag)
        for name, stats in self._runner.stats.items():
            where = format_labels(handler=name)
            out.add("headrace_worker_messages_in_flight", stats.in_flight, where)
            for action, count in stats.failed.items():
                out.add("headrace_worker_failed_total", count, format_labels(handler=name, action=action))
            out.add_histogram("headrace_worker_handler_duration_seconds", stats.seconds, where)
        return b"".join(out.pieces())


class _WorkerPages:
    """The health pages, and nothing else."""

    def __init__(self, pages: HealthPages) -> None:
        self._pages = pages
        self.body_limit = pages.body_limit
        self.handle = pages.handle

    async def admit(self, request: Request) -> None:
        if request.path not in PATHS:
            raise Problem(404, "not_found", f"there is no page {request.path}", f"use {', '.join(sorted(PATHS))}")


def _first(group: ExceptionGroup[HeadraceError]) -> str:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error.message
