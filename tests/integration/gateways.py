"""`headrace gateway` processes, and REST clients of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests
from tests.integration.process import PATIENCE_SECONDS, free_ports, wait_until

HEADRACE = str(Path(sys.executable).with_name("headrace"))


class GatewayProcess:
    """A gateway process; its port stays the same after restarts."""

    def __init__(self, folder: Path, bootstrap: str, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.bootstrap = bootstrap
        self.options = options
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the gateway does not run"
        return self._process

    def launch(self) -> GatewayProcess:
        """Start the process without waiting until it is ready."""
        command = [HEADRACE, "gateway", "--bootstrap", self.bootstrap, "--http", f"127.0.0.1:{self.port}"]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("ab") as err:
            self._process = subprocess.Popen(
                [*command, *self.options], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        return self

    def start(self) -> GatewayProcess:
        self.launch()
        wait_until(self.says_ready, "the gateway says ready")
        return self

    def says_ready(self) -> bool:
        exit_code = self.process.poll()
        assert exit_code is None, f"the gateway ended with {exit_code}:\n{self.log_text()}"
        return (self.folder / "out").read_text().startswith("ready ")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._process = None

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()

    def wait_ended(self) -> int:
        exit_code = self.process.wait(PATIENCE_SECONDS)
        self._process = None
        return exit_code

    def stop(self) -> None:
        if self._process is not None:
            self.kill()

    def log_text(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        except requests.ConnectionError:
            return False


class Caller:
    """A REST client of one gateway, with or without a token."""

    def __init__(self, gateway: GatewayProcess, token: str | None = None) -> None:
        self.gateway = gateway
        self._session = requests.Session()
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        return self._session.request(method, self.gateway.url + path, timeout=PATIENCE_SECONDS, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.ask("POST", path, json=body, **options)

    def make_topic(self, name: str, **options: Any) -> None:
        response = self.post("/topics", {"name": name, **options})
        assert response.status_code == 201, response.text

    def subscribe(self, topic: str, name: str) -> None:
        response = self.post(f"/topics/{topic}/subscriptions", {"name": name, "start": "earliest"})
        assert response.status_code == 201, response.text

    def pull(self, subscription: str, count: int = 10, wait: str = "0s") -> list[dict[str, Any]]:
        response = self.get(f"/subscriptions/{subscription}/messages?max_messages={count}&wait={wait}")
        assert response.status_code == 200, response.text
        messages: list[dict[str, Any]] = response.json()["messages"]
        return messages


def make_token(server: str, *options: str) -> tuple[str, str]:
    """Create a token by the command line; return its id and the token."""
    made = subprocess.run(
        [HEADRACE, "token", "create", "test", "--server", server, *options], capture_output=True, text=True, check=True
    )
    row = json.loads(made.stdout)
    return row["id"], row["token"]


def revoke_token(server: str, token_id: str) -> None:
    subprocess.run([HEADRACE, "token", "revoke", token_id, "--yes", "--server", server], check=True)
