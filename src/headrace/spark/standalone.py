"""A Spark standalone cluster on this host, from the installed wheel: master and workers, for trials and tests.

    <data>/.lock            locked by this process and its daemons, which may outlive a killed parent
    <data>/master/          log, pid
    <data>/worker-1/        log, pid, and a folder for each application that ran on it

- It listens only on loopback: a client of a master can run any program on its workers.
- A daemon that exits is not restarted: it ends the cluster.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.runtime.process_resources import check_address_free, lock_folder
from headrace.spark.session import LOOPBACK, environment

MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"
DAEMON_MEMORY: Final = "-Xmx512m"
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 15.0
PORT_IN_USE_HINT: Final = (
    "another `headrace pipeline cluster`, or by daemons that a killed one left behind; */pid has their process ids"
)
POLL_SECONDS: Final = 0.2

_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}[kmgt]", re.IGNORECASE)


class ClusterEnded(HeadraceError):
    """The cluster has ended or did not start."""


class StandaloneSettings(msgspec.Struct, frozen=True):
    data: str
    listen: tuple[str, int]
    workers: int = 2
    cores: int = 1
    memory: str = "1g"

    def check(self) -> None:
        host, port = self.listen
        if host not in _LOOPBACK_HOSTS:
            raise InvalidConfig(
                f"--listen {host} is reachable from other hosts, whose users could run programs here; listen on "
                "127.0.0.1, and set up Spark's own daemons for a cluster of several hosts"
            )
        if port == 0:
            raise InvalidConfig("--listen must name a port: drivers need to know it")
        if _MEMORY.fullmatch(self.memory) is None:
            raise InvalidConfig(f"--memory must be as 512m or 2g, not {self.memory!r}")

    @property
    def url(self) -> str:
        host, port = self.listen
        return f"spark://{host}:{port}"


class Daemon:
    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, environ: Mapping[str, str], lock: int) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=self.folder,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the daemons in order
            )
        (self.folder / "pid").write_text(f"{self._process.pid}\n")

    async def ended(self) -> str:
        assert self._process is not None
        status = await self._process.wait()
        return f"{self.folder.name} ended with status {status}; see {self.folder / 'log'}"

    async def stop(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        (self.folder / "pid").unlink(missing_ok=True)


def run_standalone(settings: StandaloneSettings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    try:
        asyncio.run(_run(settings, Path(settings.data).absolute()))
    except (HeadraceError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


async def _run(settings: StandaloneSettings, data: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    check_address_free(settings.listen)
    lock = lock_folder(str(data), PORT_IN_USE_HINT)
    started: list[Daemon] = []
    try:
        ui_port = _free_port()
        for daemon in daemons(settings, data, ui_port):
            started.append(daemon)
            await daemon.start(daemon_environment(), lock)
        await _supervise(settings, started, ui_port, stop)
    finally:
        for daemon in reversed(started):  # the workers first: they would try to reconnect to the master
            await daemon.stop()
        os.close(lock)


async def _supervise(
    settings: StandaloneSettings, started: Sequence[Daemon], ui_port: int, stop: asyncio.Event
) -> None:
    """Return at a stop request; raise if a daemon exits."""
    async with asyncio.TaskGroup() as group:
        stopped = group.create_task(stop.wait())
        ready = group.create_task(_until_ready(settings.workers, ui_port))
        endings = [group.create_task(daemon.ended()) for daemon in started]
        await asyncio.wait((stopped, ready, *endings), return_when=asyncio.FIRST_COMPLETED)
        failure = ""
        if ready.done():
            if ready.result():
                sys.stdout.write(f"ready {settings.url} workers={settings.workers} ui=http://{LOOPBACK}:{ui_port}\n")
                sys.stdout.flush()
                await asyncio.wait((stopped, *endings), return_when=asyncio.FIRST_COMPLETED)
            else:
                failure = f"the workers did not join within {START_SECONDS:.0f} s; see {started[0].folder / 'log'}"
        if not stopped.done():
            failure = next((ending.result() for ending in endings if ending.done()), failure)
        for task in (stopped, ready, *endings):
            task.cancel()
    if failure:
        raise ClusterEnded(failure)


async def _until_ready(workers: int, ui_port: int) -> bool:
    """Whether the workers have registered with the master; an open port does not prove that."""
    try:
        async with asyncio.timeout(START_SECONDS):
            while await _workers_alive(ui_port) < workers:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return False
    return True


class _MasterState(msgspec.Struct):
    aliveworkers: int = 0


async def _workers_alive(ui_port: int) -> int:
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, ui_port)
    except OSError:
        return 0
    try:
        writer.write(b"GET /json/ HTTP/1.0\r\n\r\n")
        response = await reader.read()
        return msgspec.json.decode(response.partition(b"\r\n\r\n")[2], type=_MasterState).aliveworkers
    except (OSError, msgspec.MsgspecError):  # it has just started to listen
        return 0
    finally:
        writer.close()


def daemons(settings: StandaloneSettings, data: Path, ui_port: int) -> list[Daemon]:
    """The master first."""
    environ = environment()
    java = [
        *(os.path.join(environ["JAVA_HOME"], "bin", "java"), DAEMON_MEMORY, "-XX:+UseSerialGC"),
        *("-Dspark.master.rest.enabled=false", "-cp", os.path.join(environ["SPARK_HOME"], "jars", "*")),
    ]
    host, port = settings.listen
    master = [*java, MASTER_CLASS, "--host", host, "--port", str(port), "--webui-port", str(ui_port)]
    found = [Daemon(data / "master", master)]
    for number in range(1, settings.workers + 1):
        folder = data / f"worker-{number}"
        limits = ["--cores", str(settings.cores), "--memory", settings.memory, "--work-dir", str(folder)]
        worker = [*java, WORKER_CLASS, "--host", host, "--webui-port", "0", *limits, settings.url]
        found.append(Daemon(folder, worker))
    return found


def daemon_environment() -> dict[str, str]:
    found = environment()
    jar = next(Path(found["SPARK_HOME"], "jars").glob("spark-core_*.jar")).name
    return {
        **os.environ,
        **found,
        # All ports are bound to this address, also those without an option.
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        # Workers cannot start executors without it. Spark's start scripts set it.
        "SPARK_SCALA_VERSION": jar.removeprefix("spark-core_").partition("-")[0],
    }


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as holder:
        return int(holder.getsockname()[1])
