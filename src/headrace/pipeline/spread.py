"""Work spread over Spark's tasks, one task per piece, whose results come back one by one as they are ready.

A job of Spark's tells its results when all of it is done. Here each piece is a job of its own, and as many run at a
time as there are cores: so the driver hears of every piece, and a stop waits for those that run, not for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SparkTaskPool:
    """Use it as a context: whoever leaves it by an error breaks off what runs."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.spark = spark
        self._name = name
        self._pool = ThreadPoolExecutor(max(1, spark.sparkContext.defaultParallelism), "headrace-spread")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.spark.sparkContext.cancelJobGroup(self._name)
        self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[SparkSession], T]) -> Future[T]:
        """Run it in a thread of its own, in which it may start a job of Spark's and wait for it."""

        def in_group() -> T:
            self.spark.sparkContext.setJobGroup(self._name, self._name)
            return work(self.spark)

        return self._pool.submit(in_group)


def run_task(spark: SparkSession, function: Callable[[T], object], item: T) -> object:
    """What the function, which workers can import, makes of the item in a task."""
    (result,) = spark.sparkContext.parallelize([item], 1).map(function).collect()
    return result
