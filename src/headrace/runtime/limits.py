"""How many descriptors the process may have open: connections and log files share them."""

from __future__ import annotations

import resource


def raise_open_files_limit() -> int:
    """Lift the soft limit to the hard one; what is then allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # a container may forbid it: then the soft limit is what there is
    return soft
