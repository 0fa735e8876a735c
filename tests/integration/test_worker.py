"""A real `headrace worker` process: signals, kill -9, poison, and an outage of its broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, free_ports, wait_until

from headrace import Client

TASKS = """
import os
import time
from pathlib import Path
from headrace import Message
from headrace.worker import App, Retries

app = App("billing")


def note(line):
    with open("notes.txt", "a") as file:
        file.write(line + "\\n")


@app.subscriber("orders", retry=Retries(limit=3, backoff=0), configs={"share.record.lock.duration.ms": "2000"})
async def bill(order: dict[str, int]) -> None:
    note(f"order {order['id']}")


@app.subscriber("slow", concurrency=1, configs={"share.record.lock.duration.ms": "1000"})
def slow(message: Message) -> None:
    note(f"begins {message.text} {message.attempt}")
    while not Path("go").exists():
        time.sleep(0.01)
    note(f"ends {message.text}")
"""


class WorkerProcess:
    def __init__(self, folder: Path, broker: BrokerProcess, *options: str) -> None:
        self.folder = folder
        self.log = folder / "worker.log"
        with (folder / "ready.txt").open("wb") as ready, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                worker_command(broker.address, *options), cwd=folder, stdout=ready, stderr=log, start_new_session=True
            )

    def notes(self) -> list[str]:
        path = self.folder / "notes.txt"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, line: str, count: int = 1) -> None:
        def noted() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.notes().count(line) >= count

        wait_until(noted, f"the worker notes {line!r}")

    def wait_logged(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), f"the worker logs {text!r}")

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_ended(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)


def worker_command(address: str, *options: str, application: str = "tasks:app") -> list[str]:
    headrace = str(Path(sys.executable).with_name("headrace"))
    return [headrace, "worker", application, "--server", address, *options]


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(tmp_path: Path, broker: BrokerProcess) -> Iterator[StartWorker]:
    started: list[WorkerProcess] = []
    folder = tmp_path / "worker"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)

    def start(*options: str) -> WorkerProcess:
        started.append(WorkerProcess(folder, broker, *options))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait()


def test_sigterm_lets_the_handler_finish_and_releases_the_rest(
    start_worker: StartWorker, broker: BrokerProcess
) -> None:
    worker = start_worker()
    with Client(broker.address) as client:
        client.publish_many("slow", ["one", "two"])
        worker.wait_for("begins one 1")
        worker.send_signal(signal.SIGTERM)
        worker.wait_logged("worker stops")
        (worker.folder / "go").touch()
        assert worker.wait_ended() == 0
        assert worker.notes() == ["begins one 1", "ends one"]
        again = start_worker()
        again.wait_for("ends two")
        assert again.notes()[2:] == ["begins two 1", "ends two"]


def test_a_second_signal_releases_messages_in_work(start_worker: StartWorker, broker: BrokerProcess) -> None:
    worker = start_worker("--grace", "10m")
    with Client(broker.address) as client:
        client.publish("slow", "one")
        worker.wait_for("begins one 1")
        worker.send_signal(signal.SIGINT)
        worker.wait_logged("worker stops")
        worker.send_signal(signal.SIGINT)
        assert worker.wait_ended() == 1
        (worker.folder / "go").touch()
        start_worker().wait_for("begins one 1", count=2)  # released: that was no attempt


def test_kill_9_loses_no_message(start_worker: StartWorker, broker: BrokerProcess) -> None:
    worker = start_worker()
    with Client(broker.address) as client:
        client.publish("slow", "one")
        worker.wait_for("begins one 1")
        worker.process.kill()
        worker.wait_ended()
        (worker.folder / "go").touch()
        again = start_worker()
        again.wait_for("ends one")
        assert again.notes() == ["begins one 1", "begins one 2", "ends one"]


def test_a_poisonous_message_does_not_stop_the_others(start_worker: StartWorker, broker: BrokerProcess) -> None:
    worker = start_worker()
    with Client(broker.address) as client:
        client.publish_many("orders", [{"id": 1}, "no json", {"number": 2}, {"id": 3}])
        worker.wait_for("order 1")
        worker.wait_for("order 3")
        wait_until(lambda: len(client.dead_letters("orders")) == 2, "both are dead letters")
        deaths = [letter.death for letter in client.dead_letters("orders")]
    attempts = {(death.reason or "").split(":")[0]: death.attempts for death in deaths if death is not None}
    assert attempts == {"Undecodable": 1, "KeyError": 3}


def test_a_worker_goes_on_after_an_outage_of_its_broker(start_worker: StartWorker, broker: BrokerProcess) -> None:
    (port,) = free_ports(1)
    worker = start_worker("--health", f"127.0.0.1:{port}")
    with Client(broker.address) as client:
        client.publish("orders", {"id": 1})
        worker.wait_for("order 1")
        broker.kill()
        broker.start()
        client.publish("orders", {"id": 2})
        worker.wait_for("order 2")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS) as response:
        assert response.read() == b"[+] serving\n[+] subscriptions\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as response:
        assert b'headrace_worker_messages_in_flight{handler="tasks.bill"} 0\n' in response.read()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_ended() == 0


def test_a_worker_waits_for_its_broker(start_worker: StartWorker, broker: BrokerProcess) -> None:
    broker.kill()
    worker = start_worker()
    wait_until(lambda: (worker.folder / "ready.txt").read_text().startswith("ready app=billing"), "the worker is ready")
    broker.start()
    with Client(broker.address) as client:
        client.publish("orders", {"id": 1})
        worker.wait_for("order 1")


def test_worker_processes_are_restarted_and_stopped_together(start_worker: StartWorker, broker: BrokerProcess) -> None:
    worker = start_worker("--processes", "2")
    parent = psutil.Process(worker.process.pid)
    wait_until(lambda: "ready processes=2" in (worker.folder / "ready.txt").read_text(), "both are ready")
    first, second = parent.children()
    first.kill()
    wait_until(lambda: len({child.pid for child in parent.children()} - {first.pid}) == 2, "one takes its place")
    with Client(broker.address) as client:
        client.publish("orders", {"id": 1})
        worker.wait_for("order 1")
    children = parent.children()
    worker.process.kill()
    psutil.wait_procs(children, PATIENCE_SECONDS)
    assert not any(child.is_running() for child in [*children, second])


def test_changed_code_is_reloaded(start_worker: StartWorker, broker: BrokerProcess) -> None:
    worker = start_worker("--reload")
    wait_until(lambda: "ready processes=1" in (worker.folder / "ready.txt").read_text(), "it is ready")
    path = worker.folder / "tasks.py"
    code = path.read_text()
    path.write_text("this is no program")
    worker.wait_logged("waiting for a change")
    path.write_text(code.replace("order {order['id']}", "changed {order['id']}"))
    with Client(broker.address) as client:
        worker.wait_logged("worker 0 is up again")
        client.publish("orders", {"id": 1})
        worker.wait_for("changed 1")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_ended() == 0


@pytest.mark.parametrize(
    ("application", "said"),
    [
        ("tasks", "error: 'tasks' does not name an application; write MODULE:APP"),
        ("missing:app", "error: there is no module 'missing'"),
        ("tasks:other", "error: module 'tasks' has no headrace.worker.App named 'other'; it has app"),
        ("empty:app", "error: empty:app has no handlers"),
        ("wrong:app", "error: 'drop' is not an action"),
    ],
)
def test_a_wrong_application_is_named(tmp_path: Path, application: str, said: str) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "empty.py").write_text("from headrace.worker import App\napp = App('billing')\n")
    (tmp_path / "wrong.py").write_text(
        "from headrace.worker import App\napp = App('billing')\n"
        "@app.subscriber('orders', on={ValueError: 'drop'})\ndef bill(order: dict) -> None: ...\n"
    )
    done = subprocess.run(
        worker_command("127.0.0.1:1", application=application),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ | {"HEADRACE_SERVER": ""},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert said.removeprefix("error: ") in done.stderr
    assert "Traceback" not in done.stderr


def test_the_application_of_the_documentation_runs(tmp_path: Path, broker: BrokerProcess) -> None:
    page = (Path(__file__).parents[2] / "docs" / "worker.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    (tmp_path / "tasks.py").write_text("\n".join(blocks))
    worker = WorkerProcess(tmp_path, broker)
    try:
        with Client(broker.address) as client:
            client.create_topic("documents")
            client.publish_many("orders", [{"id": 1, "total": 30}, {"id": 2, "total": -1}])
            with client.consume("documents") as documents:
                assert next(iter(documents)).text == "Invoice for order 1: 30.00"
            wait_until(lambda: bool(client.dead_letters("orders")), "the negative total is a dead letter")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait_ended() == 0
        assert "took" in (tmp_path / "ready.txt").read_text()
    finally:
        worker.process.kill()
        worker.process.wait()
