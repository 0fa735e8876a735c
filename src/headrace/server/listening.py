"""Helpful errors when a server cannot listen on its address."""

from __future__ import annotations

import errno

from headrace.model.errors import InvalidConfig
from headrace.server.settings import Address, show_address


def listen_error(option: str, address: Address, error: OSError) -> InvalidConfig:
    if error.errno == errno.EADDRINUSE:
        return InvalidConfig(
            f"address {show_address(*address)} is in use; stop the other server, or choose another one with {option}"
        )
    return InvalidConfig(
        f"cannot listen on {show_address(*address)}: {error.strerror or error}; choose another address with {option}"
    )
