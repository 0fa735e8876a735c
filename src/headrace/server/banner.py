"""What `headrace serve` shows at a terminal when it is ready: where the data is, and commands to try.

Nothing is printed if stderr is not a terminal: the log of a supervised process contains events only.
"""

from __future__ import annotations

import os
import sys


def print_banner(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\n{text}\n\n")
        sys.stderr.flush()


def command_name() -> str:
    """Return `headrace` if the shell finds this program under that name, else its absolute path."""
    path = os.path.abspath(sys.argv[0])
    if os.path.basename(path) != "headrace":
        return "headrace"
    import shutil  # not needed without a terminal: keeps startup fast

    found = shutil.which("headrace")
    return "headrace" if found is not None and os.path.abspath(found) == path else path
