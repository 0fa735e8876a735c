"""DescribePushes: who pushes asks every now and then which subscriptions are to be pushed.

The version is made of what is told, so that it means the same at every broker and after a restart.
"""

from __future__ import annotations

from headrace.broker.handlers import RequestContext
from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.wire.messages.queues import DescribedPush, DescribePushesRequest, DescribePushesResponse

_VERSION_BYTES = 12


class PushRequests:
    def __init__(self, configs: SubscriptionConfigs) -> None:
        self._configs = configs
        self._told: DescribePushesResponse | None = None
        configs.on_changed.append(self._forget)

    async def describe(self, request: DescribePushesRequest, _context: RequestContext) -> DescribePushesResponse:
        if self._told is None:
            self._told = self._look()
        if request.version == self._told.version:
            return DescribePushesResponse(version=request.version)
        return self._told

    def _forget(self, _name: str) -> None:
        self._told = None

    def _look(self) -> DescribePushesResponse:
        from hashlib import blake2b  # imported only if push is used

        pushes = [
            DescribedPush(
                subscription=name,
                url=config.headrace_push_url,
                secret=config.headrace_push_secret,
                concurrency=config.headrace_push_concurrency,
                rate=config.headrace_push_rate,
                timeout_ms=config.headrace_push_timeout_ms,
                backoff_ms=config.headrace_retry_backoff_ms,
                topics=[*topics],
            )
            for name, topics, config in self._configs.pushes()
        ]
        version = blake2b(repr(pushes).encode(), digest_size=_VERSION_BYTES).hexdigest()
        return DescribePushesResponse(version=version, is_changed=True, pushes=pushes)
