"""Simulated clock, disk and network; shipped so that users can test too."""
