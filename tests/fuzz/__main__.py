"""Coverage-guided fuzzing by hand: `python -m tests.fuzz TARGET [corpus folder] [libFuzzer options]`.

For instance `python -m tests.fuzz batch /tmp/corpus -max_total_time=600 -rss_limit_mb=1024`. A finding is written
beside the corpus; put its bytes into test_fuzz.py once it is mended.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headrace"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(TARGETS)} [corpus folder] [libFuzzer options]")
    name, options = sys.argv[1], sys.argv[2:]
    folders = [option for option in options if not option.startswith("-")]
    corpus = Path(folders[0] if folders else tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    rest = [option for option in options if option.startswith("-")]
    atheris.Setup([sys.argv[0], str(corpus), *rest], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
