"""Chaos tests: inject faults into a cluster of real processes while clients work, then check. See docs/chaos.md."""
