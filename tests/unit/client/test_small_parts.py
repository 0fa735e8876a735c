"""Addresses, pauses and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.connections.address import Address, parse_address, parse_addresses
from headrace.client.connections.backoff import Backoff
from headrace.client.errors import UnknownErrorCode, error_of_code, raise_for_code
from headrace.model import errors
from headrace.model.errors import HeadraceError
from headrace.testkit.entropy import SeededEntropy


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9092)),
        ("10.0.0.1:1234", Address("10.0.0.1", 1234)),
        ("[::1]:9093", Address("::1", 9093)),
        ("[::1]", Address("::1", 9092)),
        ("::1", Address("::1", 9092)),
        (" host:1 ", Address("host", 1)),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":9092", "host:x", "host:70000", "[::1", "[::1]9092", "host:-1"])
def test_an_invalid_address_is_rejected_with_a_message(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


def test_several_addresses_are_divided_by_commas() -> None:
    assert parse_addresses("a:1, b:2,") == [Address("a", 1), Address("b", 2)]
    with pytest.raises(ValueError, match="no address"):
        parse_addresses(" , ")


@given(seed=st.integers(0, 1000), attempts=st.integers(1, 10_000))
def test_a_pause_is_never_longer_than_the_cap(seed: int, attempts: int) -> None:
    backoff = Backoff(SeededEntropy(seed), first_seconds=0.1, cap_seconds=2.0)
    assert 0.0 <= backoff.seconds_after(attempts) <= min(2.0, 0.1 * 2 ** min(attempts - 1, 100))


def test_pauses_grow() -> None:
    backoff = Backoff(SeededEntropy(1), first_seconds=0.1, cap_seconds=1000.0)
    assert backoff.next_seconds() <= 0.1
    assert max(backoff.next_seconds() for _ in range(12)) > 1.0


def test_every_code_of_the_model_maps_to_its_class() -> None:
    assert isinstance(error_of_code(6), errors.NotLeader)
    assert isinstance(error_of_code(42), errors.InvalidRequest)
    assert isinstance(error_of_code(56), errors.StorageFailure)
    assert isinstance(error_of_code(5), errors.LeaderNotAvailable)
    assert error_of_code(36, "there is one").message == "there is one"
    assert error_of_code(36).message == "A topic with this name already exists."


def test_a_code_without_a_name_keeps_its_number() -> None:
    error = error_of_code(117)
    assert isinstance(error, UnknownErrorCode)
    assert error.number == 117
    assert "117" in error.message


def test_zero_is_success() -> None:
    raise_for_code(0)
    with pytest.raises(HeadraceError):
        raise_for_code(-1)
