"""Functions that tests run in processes of their own, which import this module."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass
class Order:
    id: int


class Local(Exception):
    """Its instances cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def process_of(_order: Order) -> int:
    return os.getpid()


def sleep_long(_order: Order) -> None:
    time.sleep(300)


def exit_at_once(_order: Order) -> None:
    os._exit(3)


def raise_value_error(order: Order) -> None:
    raise ValueError(f"order {order.id}")


def raise_unpicklable(_order: Order) -> None:
    raise Local(1, 2)
