"""Background workers: handlers that are declared with decorators and run by `headrace worker MODULE:APP`.

    from headrace.worker import App

    app = App("billing")

    @app.subscriber("orders")
    async def bill(order: Order) -> None:
        ...

docs/worker.md is the guide; `app` has the declarations, `runner` executes them.
"""

from headrace.sdk.errors import Reject, Retry
from headrace.worker.app import App, Retries, TimeLimitExceeded

__all__ = ["App", "Reject", "Retries", "Retry", "TimeLimitExceeded"]
