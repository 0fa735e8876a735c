"""Print measurements at the end of the run, as the integration tests do."""

from __future__ import annotations

from tests.integration.conftest import figures, pytest_terminal_summary

__all__ = ["figures", "pytest_terminal_summary"]
