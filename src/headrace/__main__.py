"""Run the `headrace` command as `python -m headrace`, if it is not on the path."""

from headrace.cli.main import main

raise SystemExit(main())
