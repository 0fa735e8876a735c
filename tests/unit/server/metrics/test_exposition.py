"""The text format can be parsed with any names of topics and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.metrics.metrics_page import MetricsPage

from headrace.model.histogram import Histogram
from headrace.server.metrics.exposition import Exposition, format_labels

NAMES = ["kafka_consumergroup_members", "kafka_consumergroup_lag_sum"]


def read(out: Exposition) -> MetricsPage:
    return MetricsPage(b"".join(out.pieces()).decode())


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(st.characters(codec="utf-8"))), unique=True))
def test_samples_of_a_family_are_adjacent_and_labels_round_trip(added: list[tuple[str, str]]) -> None:
    out = Exposition()
    out.add("headrace_uptime_seconds", 1.5)
    for number, (name, label) in enumerate(added):
        out.add(name, number, format_labels(consumergroup=label, topic="t"))
    out.add_histogram("headrace_fsync_seconds", Histogram())
    page = read(out)
    for number, (name, label) in enumerate(added):
        assert page.value(name, consumergroup=label, topic="t") == number


def test_a_histogram_reports_its_observations() -> None:
    histogram = Histogram()
    for seconds in (0.00005, 0.002, 0.002, 100.0):
        histogram.observe(seconds)
    out = Exposition()
    out.add_histogram("headrace_request_duration_seconds", histogram, format_labels(api="Produce"))
    page = read(out)
    name = "headrace_request_duration_seconds"
    assert page.kinds[name] == "histogram"
    assert page.value(f"{name}_count", api="Produce") == 4
    assert page.value(f"{name}_sum", api="Produce") == pytest.approx(100.00405)
    assert page.value(f"{name}_bucket", api="Produce", le="0.0001") == 1
    assert page.value(f"{name}_bucket", api="Produce", le="0.0025") == 3
    assert page.value(f"{name}_bucket", api="Produce", le="10.0") == 3
    assert page.value(f"{name}_bucket", api="Produce", le="+Inf") == 4


def test_only_families_of_the_table_can_be_added() -> None:
    with pytest.raises(KeyError):
        Exposition().add("headrace_made_up", 1)


@pytest.mark.parametrize(
    "text",
    [
        "a 1",
        "a 1\n",
        "# HELP a b\na 1\n",
        "# TYPE a gauge\na 1\n",
        "# HELP a b\n# TYPE a gauge\nb 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 2\n",
        '# HELP a b\n# TYPE a gauge\na{x="1",x="2"} 1\n',
        '# HELP a b\n# TYPE a gauge\na{x="\\t"} 1\n',
        "# HELP a b\n# TYPE a counter\na 1\n",
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_parser_of_the_tests_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        MetricsPage(text)
