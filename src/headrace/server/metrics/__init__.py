"""The metrics of a broker in the Prometheus text format, under the names that existing Kafka dashboards use."""

from headrace.server.metrics.broker_metrics import BrokerMetrics

__all__ = ["BrokerMetrics"]
