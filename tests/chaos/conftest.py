"""What a test measured is printed at the end of the run, as for the tests with real processes."""

from __future__ import annotations

from tests.integration.conftest import figures, pytest_terminal_summary

__all__ = ["figures", "pytest_terminal_summary"]
