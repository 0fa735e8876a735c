"""`python -m headrace`, for when the command is not on the path."""

from headrace.cli.main import main

raise SystemExit(main())
