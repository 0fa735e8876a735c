"""The programs of examples/spark/ are short and write correct results, also when they run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted((EXAMPLES / "spark").glob("*.py"))
LINES_MAX = 80


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A separate broker, because the programs' topics have common names."""
    process = BrokerProcess(tmp_path / "broker").start()
    yield process.address
    process.stop()


def _program(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / "spark" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _written(spark: SparkSession, address: str, topic: str) -> list[dict[str, Any]]:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    return sorted((json.loads(row.value) for row in reader.load().collect()), key=str)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_is_short_and_in_the_list(program: Path) -> None:
    assert len(program.read_text().splitlines()) < LINES_MAX
    assert f"`spark/{program.name}`" in (EXAMPLES / "README.md").read_text()


def test_orders_are_counted_per_customer_and_minute_and_once(spark: SparkSession, address: str, tmp_path: Path) -> None:
    program = _program("windowed_aggregation")
    program.seed(address)
    for _ in range(2):  # the second run has nothing to add
        counts = program.count(program.read(spark, address))
        program.write(counts, address, str(tmp_path / "checkpoint"), True).awaitTermination()
    counted = {
        (row["customer"], row["minute"][11:16]): (row["orders"], row["amount"])
        for row in _written(spark, address, "orders-per-minute")
    }
    assert counted == {
        ("ada", "10:00"): (3, 41.0),
        ("grace", "10:00"): (1, 20.0),
        ("ada", "10:01"): (1, 5.0),
        ("alan", "10:01"): (1, 7.0),
    }
    assert len(_written(spark, address, "orders-per-minute")) == len(counted)


def test_orders_are_joined_with_payments_or_reported_without(spark: SparkSession, address: str, tmp_path: Path) -> None:
    program = _program("stream_join")
    program.seed(address)
    rows = program.join(program.read(spark, address, "placed"), program.read(spark, address, "paid"))
    program.write(rows, address, str(tmp_path / "checkpoint"), True).awaitTermination()
    found = {row["id"]: row["is_paid"] for row in _written(spark, address, "order-payments")}
    assert found == {"o-1": True, "o-2": False, "o-3": False, "o-9": True}
