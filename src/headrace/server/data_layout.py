"""Check the layout of a data folder, so that a broker does not start on the folder of several brokers, or vice versa.

one         <data>/logs/...
several     <data>/registry.db    <data>/broker-1/logs/...    <data>/broker-2/logs/...
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.model.errors import InvalidConfig

_PREFIX = "broker-"


def broker_folder(data: str, node_id: int) -> str:
    return os.path.join(data, f"{_PREFIX}{node_id}")


def reject_multi_broker_folder(data: str) -> None:
    found = _brokers_in(data)
    if found:
        first = "" if found[0] == 1 else f" --node-id {found[0]}"
        raise InvalidConfig(
            f"{data} is the data folder of {len(found)} brokers; start them with --brokers {len(found)}{first}, "
            "or specify another folder with --data"
        )


def reject_single_broker_folder(data: str, node_ids: Sequence[int]) -> None:
    """Accept only a new folder, or the folder of exactly these brokers."""
    if os.path.isdir(os.path.join(data, "logs")):
        raise InvalidConfig(
            f"{data} is the data folder of one broker; omit --brokers, or specify another folder with --data"
        )
    others = [node_id for node_id in _brokers_in(data) if node_id not in node_ids]
    if others:
        raise InvalidConfig(
            f"{broker_folder(data, others[0])} belongs to a broker that would not be started; increase --brokers, or "
            f"drain the broker with `headrace cluster drain {others[0]} --wait` and remove its folder"
        )


def _brokers_in(data: str) -> list[int]:
    try:
        names = os.listdir(data)
    except FileNotFoundError:
        return []
    numbers = (name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())
