"""The types of what `headrace` imports when it is first asked for."""

from headrace.sdk import *  # noqa: F403 - what stands there stands here

__version__: str
__all__: list[str]
