"""Only public addresses are connected to, however they are written."""

from __future__ import annotations

import socket

import pytest

from headrace.push.webhook_sender import ForbiddenAddress, is_public, public_socket


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "168.63.129.16",  # Azure's WireServer
        "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110",
        "64:ff9b:1::a00:1",
        "100.100.100.200",  # Alibaba's metadata
        "192.0.0.192",  # Oracle's metadata
        "192.0.2.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::1",
        "localhost",
        "",
    ],
)
def test_all_others_are_not(address: str) -> None:
    assert not is_public(address)


def test_no_socket_is_opened_for_a_private_address() -> None:
    with pytest.raises(
        ForbiddenAddress, match="not a public address, and private ones are allowed only by --push-private"
    ):
        public_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80)))
    public_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))).close()
