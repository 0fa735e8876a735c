"""The error of the benchmark harness."""


class BenchFailure(Exception):
    """A server, a load generator or a download failed; the message contains the end of its output."""
