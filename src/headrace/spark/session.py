"""A Spark session that suits Headrace and starts where no Java is installed.

What the caller sets in `conf` wins over what is set here. The environment is changed for the start only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidConfig
from headrace.spark.java import cached, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"

LOGGING = """# Errors only; spark.log.level says otherwise. Without such a file Spark begins with a page of its own.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it Spark hands no filters to a Python source.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A file of the checkpoint without a second one for its checksum: a third less time per micro-batch.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


def session(name: str = "headrace", *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, started if there is none yet; that takes seconds."""
    changed = environment()
    if "SPARK_CONF_DIR" not in os.environ and not Path(changed["SPARK_HOME"], "conf").is_dir():
        changed["SPARK_CONF_DIR"] = _conf_folder()
    if is_local(master):
        changed["SPARK_LOCAL_IP"] = LOOPBACK
    with _environment_of(changed):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name).master(master)
        for key, value in (SETTINGS | _settings_of(master) | dict(conf or {})).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def environment() -> dict[str, str]:
    """What spark-submit and the daemons of a standalone cluster need in their environment, beyond what is in it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidConfig("Spark is not installed: `pip install headrace[spark]`")
    return {
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "PYSPARK_PYTHON": sys.executable,  # else workers run the first python3 on PATH, which may lack Headrace
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _conf_folder() -> str:
    def fill(made: Path, _folder: Path) -> None:
        (made / "log4j2.properties").write_text(LOGGING)

    return str(cached("conf", LOGGING, fill))


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _settings_of(master: str) -> dict[str, str]:
    # Functions of plain Python would go by Arrow, which Spark does only with pandas: without it each gives a warning.
    udfs = {} if find_spec("pandas") else {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}
    if not is_local(master):
        return udfs
    return udfs | {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "2g",  # the driver does all the work
        "spark.sql.shuffle.partitions": str(_threads_of(master)),
    }


def _threads_of(master: str) -> int:
    given = re.match(r"local\[(\d+)", master)
    if given:
        return int(given[1])
    return 1 if master == "local" else os.cpu_count() or 1


@contextmanager
def _environment_of(changed: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
