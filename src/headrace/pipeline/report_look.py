"""What a report asks the brokers: which topics there are, and how subscriptions and consumer groups stand now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.client.group_admin import GroupAdmin, PartitionLag
from headrace.client.subscription_admin import PartitionBacklog, SubscriptionAdmin
from headrace.pipeline.audit_sources import Look
from headrace.pipeline.report_figures import Backlog, Lag
from headrace.pipeline.topic_choice import topic_names


class ReportLook(Look):
    def topics(self, texts: Sequence[str]) -> list[str]:
        """The topics that are meant by names and patterns."""
        return topic_names(self.brokers, texts)

    def backlogs(self, topic: str, subscriptions: Sequence[str]) -> list[Backlog]:
        """Of these subscriptions of the topic, or of all."""
        from headrace.columns.scan import link

        async def ask(cluster: Cluster) -> Sequence[PartitionBacklog]:
            return await SubscriptionAdmin(cluster).describe(topics=[topic])

        told = [one for one in link(self.brokers).call(ask) if not subscriptions or one.subscription in subscriptions]
        sums: dict[str, Counter[str]] = {}
        for one in told:
            counts = {"backlog": one.backlog, "leased": one.leased, "waiting": one.waiting, "dying": one.dying}
            sums.setdefault(one.subscription, Counter()).update(counts)
        return [
            Backlog(name, own["backlog"], own["leased"], own["waiting"], own["dying"]) for name, own in sums.items()
        ]

    def lags(self, topic: str) -> list[Lag]:
        """Of all consumer groups that have committed anything in the topic."""
        from headrace.columns.scan import link

        async def ask(cluster: Cluster) -> list[tuple[str, PartitionLag]]:
            admin = GroupAdmin(cluster)
            groups = [listed.group for listed in await admin.list()]
            return [(group, one) for group in groups for one in await admin.positions(group)]

        found = [(group, one) for group, one in link(self.brokers).call(ask) if one.target.topic == topic]
        return [Lag(group, one.target.partition, one.committed, one.end, one.lag) for group, one in found]
