"""The one error of the harness: something outside it did not do what a measurement needs."""


class BenchFailure(Exception):
    """A server, a load or a download failed; the message says which and what it said last."""
