"""The broker's numbers in Prometheus' text format, under the names that existing Kafka dashboards look for."""

from headrace.server.metrics.scrape import Metrics

__all__ = ["Metrics"]
