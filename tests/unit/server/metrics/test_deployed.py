"""The dashboard and alerts that we ship, and those for kafka_exporter, use existing metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.server.metrics.exposition import FAMILIES, HISTOGRAMS

DEPLOY = Path(__file__).parents[4] / "deploy"

# Of Grafana's dashboard 7589, "Kafka Exporter Overview".
DASHBOARD_7589 = (
    "kafka_consumergroup_current_offset",
    "kafka_consumergroup_lag",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partitions",
)
# Of kafka_exporter's other names, those that are not about ZooKeeper.
KAFKA_EXPORTER = (
    "kafka_broker_info",
    "kafka_brokers",
    "kafka_consumergroup_current_offset_sum",
    "kafka_consumergroup_lag_sum",
    "kafka_consumergroup_members",
    "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_leader_is_preferred",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_replicas",
    "kafka_topic_partition_under_replicated_partition",
)

_NAMES = re.compile(r"\b(?:headrace|kafka|process)_[a-z0-9_]+")


def names_in(expression: str) -> set[str]:
    """Metrics that it asks for; what a histogram is made of counts as the histogram."""
    found = set()
    for name in _NAMES.findall(expression):
        base = re.sub("_(bucket|sum|count)$", "", name)
        found.add(base if base in HISTOGRAMS else name)
    return found


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "headrace.json").read_text())


def alerts() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_of_the_dashboard_exists() -> None:
    board = dashboard()
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    assert len(panels) > 20
    assert all(map(names_in, expressions))
    assert set().union(*map(names_in, expressions)) <= FAMILIES.keys()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_metric_of_the_alerts_exists() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        names = names_in(rule["expr"])
        assert names or rule["expr"].startswith("up{"), rule["alert"]
        assert names <= FAMILIES.keys(), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "next"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_important_conditions_have_an_alert() -> None:
    names = set().union(*(names_in(rule["expr"]) for rule in alerts()))
    assert names >= {
        "headrace_disk_free_bytes",
        "headrace_subscription_dead_letters_total",
        "headrace_subscription_oldest_age_seconds",
        "kafka_consumergroup_lag_sum",
        "kafka_server_replicamanager_underreplicatedpartitions",
    }


@pytest.mark.parametrize("name", [*DASHBOARD_7589, *KAFKA_EXPORTER])
def test_metrics_of_kafka_exporter_exist(name: str) -> None:
    assert name in FAMILIES
