"""Tests of the benchmark harness: statistics, processes, schedule, tables and plot."""
