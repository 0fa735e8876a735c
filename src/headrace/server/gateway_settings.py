"""The settings of `headrace gateway`: bootstrap brokers, listen address, and access control."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from headrace.model.errors import InvalidConfig
from headrace.server.settings import Address, LogFormat, parse_address, reject_open_http, tls_files

GatewaySide = Literal["publish", "subscribe"]


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`side` is None for both publishers and subscribers. `http_hosts` are names that clients use in addition to the
    one in `http`. `tls` are the files of a certificate and its key."""

    bootstrap: str
    http: Address
    http_hosts: tuple[str, ...] = ()
    side: GatewaySide | None = None
    auth: bool = False
    open_metrics: bool = False
    tls: tuple[str, str] | None = None
    push_private: bool = False
    insecure: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"

    @classmethod
    def of(cls, *, bootstrap: str, http: str, tls: tuple[str | None, str | None], **others: object) -> Self:
        """Build from command-line options; raise `InvalidConfig`."""
        from headrace.client.connections.address import parse_addresses

        try:
            parse_addresses(bootstrap)
        except ValueError as error:
            raise InvalidConfig(f"--bootstrap: {error}") from None
        return msgspec.convert(
            {"bootstrap": bootstrap, "http": parse_address(http, "--http"), "tls": tls_files(*tls), **others}, cls
        )

    def check(self) -> None:
        """Reject settings that expose the gateway to other hosts by accident."""
        if not self.insecure:
            reject_open_http(self.http, has_tls=self.tls is not None, has_auth=self.auth)
