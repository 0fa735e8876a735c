"""Chaos: a cluster of real processes, hurt on purpose while clients work, and judged afterwards. See docs/chaos.md."""
