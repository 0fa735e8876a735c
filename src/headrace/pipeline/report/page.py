"""The report as one HTML page: no scripts, no requests, light and dark.

Each chart has a table with its numbers, for exact values and for readers who cannot see the chart. The colours of the
chart also differ in brightness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from msgspec.structs import astuple

from headrace.pipeline.report.charts import (
    Bar,
    Series,
    Shown,
    bar_chart,
    line_chart,
    shown_byte_rate,
    shown_bytes,
    shown_count,
    shown_ms,
    shown_rate,
)
from headrace.pipeline.report.figures import Report, SubscriptionFigures, TopicFigures
from headrace.pipeline.report.tasks import percentile

STYLE: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --page: #f4f6f8; --ink: #1c2530; --soft: #5b6876; --rule: #dde3e9;
  --s0: #1f6feb; --s1: #c2570c; --s2: #0b7a5b; --s3: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #171d24; --page: #0e1318; --ink: #e6ebf0; --soft: #9aa7b4;
  --rule: #2b343d; --s0: #6cb0ff; --s1: #ffa657; --s2: #4fd1a5; --s3: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 21px; margin: 0 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 16px; margin: 28px 0 10px; overflow-wrap: anywhere; }
header p, footer { color: var(--soft); }
footer { margin-top: 32px; font-size: 13px; }
nav { display: flex; flex-wrap: wrap; gap: 6px 14px; margin: 18px 0 0; }
a { color: var(--s0); }
section { background: var(--paper); border: 1px solid var(--rule); border-radius: 10px; padding: 24px;
  margin-top: 24px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(125px, 1fr)); gap: 10px; margin: 16px 0; }
.tiles > div { display: flex; flex-direction: column-reverse; background: var(--paper); border: 1px solid var(--rule);
  border-radius: 8px; padding: 10px 14px; }
.tiles dd { margin: 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles dt { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 18px; }
figure { margin: 0; border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px 10px; min-width: 0; }
svg.chart { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--ink); } svg .title { font-size: 15px; font-weight: 600; }
svg .tick, svg .label { fill: var(--soft); } svg .empty { fill: var(--soft); font-style: italic; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .hover { fill: transparent; } svg .hover:hover { fill: var(--soft); fill-opacity: 0.12; }
svg .line.s0 { stroke: var(--s0); } svg .line.s1 { stroke: var(--s1); } svg .line.s2 { stroke: var(--s2); }
svg .line.s3 { stroke: var(--s3); } svg .bar.s0 { fill: var(--s0); }
svg .dot.s0 { fill: var(--s0); } svg .dot.s1 { fill: var(--s1); } svg .dot.s2 { fill: var(--s2); }
svg .dot.s3 { fill: var(--s3); }
details { margin-top: 6px; font-size: 13px; } summary { cursor: pointer; color: var(--soft); }
.scroll { overflow: auto; max-height: 320px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child { text-align: left; } tbody th { font-weight: 400; } thead th { color: var(--soft); font-weight: 600; }
@media print { body { background: none; } section { break-inside: avoid-page; } details { display: none; } }
"""

_ROWS_MAX = 500
_BARS_MAX = 24
_FOOTNOTE = (
    "Latencies are measured from publish to ack and accurate within 1 %. The backlog is computed backwards from its "
    "value when this page was created. Times are UTC."
)

Row = Sequence[str]


def render_report_page(report: Report) -> str:
    title = escape(report.title)
    made = escape(_moment(report.made_ms))
    parts = [
        "<!doctype html>\n",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
        f"<header><h1>{title}</h1><p>{_period(report)} Made {made}.</p></header>",
        _tiles(_totals(report)),
        *_contents(report.topics),
        *(part for topic in report.topics for part in _topic(report, topic)),
        f"<footer>{_FOOTNOTE}</footer></main></body></html>\n",
    ]
    return "\n".join(parts)


def _period(report: Report) -> str:
    if not report.times_ms:
        return "There was nothing to report."
    start, end = _moment(report.times_ms[0]), _moment(report.times_ms[-1] + report.window_ms)
    return f"{escape(start)} to {escape(end)}, in windows of {escape(shown_ms(report.window_ms))}."


def _totals(report: Report) -> Iterator[tuple[str, str]]:
    subscriptions = [one for topic in report.topics for one in topic.subscriptions]
    yield "topics", str(len(report.topics))
    yield "messages", shown_count(sum(topic.total.messages for topic in report.topics))
    yield "bytes", shown_bytes(sum(topic.total.bytes for topic in report.topics))
    yield "subscriptions", str(len(subscriptions))
    yield "acked", shown_count(sum(one.total.acked for one in subscriptions))
    yield "failed deliveries", shown_count(sum(one.total.failed for one in subscriptions))
    yield "dead letters", shown_count(sum(one.total.dead for one in subscriptions))
    yield "backlog now", shown_count(sum(one.now.backlog for one in subscriptions))


def _contents(topics: Sequence[TopicFigures]) -> Iterator[str]:
    if len(topics) > 1:
        links = (f'<a href="#{_anchor(topic)}">{escape(topic.name)}</a>' for topic in topics)
        yield f'<nav aria-label="topics">{" ".join(links)}</nav>'


def _topic(report: Report, topic: TopicFigures) -> Iterator[str]:
    seconds = report.window_ms / 1000
    rates = [one.messages / seconds for one in topic.windows]
    byte_rates = [one.bytes / seconds for one in topic.windows]
    yield f'<section id="{_anchor(topic)}"><h2>{escape(topic.name)}</h2>'
    totals = [
        ("messages", shown_count(topic.total.messages)),
        ("bytes", shown_bytes(topic.total.bytes)),
        ("partitions", str(len(topic.partitions))),
        ("busiest window", shown_rate(max(rates, default=0.0))),
    ]
    yield _tiles(totals)
    yield '<div class="charts">'
    yield _over_time(report, "Messages in", [Series("messages/s", rates)], shown_rate)
    yield _over_time(report, "Bytes in", [Series("bytes/s", byte_rates)], shown_byte_rate)
    skew = [Bar(f"partition {number}", one.messages) for number, one in topic.partitions.items()]
    yield _bars("Messages by partition", "partition", skew, shown_count)
    keys = [Bar(name, one.messages) for name, one in topic.keys]
    yield _bars("Biggest keys", "key", keys, shown_count)
    yield "</div>"
    for one in topic.subscriptions:
        yield from _subscription(report, one)
    if topic.lags:
        yield "<h3>Consumer groups</h3>"
        rows = [["-" if value is None else str(value) for value in astuple(one)] for one in topic.lags]
        yield _table(("group", "partition", "committed", "end", "lag"), rows)
    yield "</section>"


def _subscription(report: Report, one: SubscriptionFigures) -> Iterator[str]:
    seconds = report.window_ms / 1000
    yield f"<h3>Subscription {escape(one.name)}</h3>"
    latencies = [percentile(one.total.latencies, share) for share in (0.5, 0.99)]
    p50, p99 = ("-" if value is None else shown_ms(value) for value in latencies)
    totals = [
        ("acked", shown_count(one.total.acked)),
        ("failed deliveries", shown_count(one.total.failed)),
        ("dead letters", shown_count(one.total.dead)),
        ("backlog now", shown_count(one.now.backlog)),
        ("half were acked within", p50),
        ("99 % within", p99),
    ]
    yield _tiles(totals)
    yield '<div class="charts">'
    latency = [
        Series("p50", one.percentiles(0.5)),
        Series("p90", one.percentiles(0.9), colour=2),
        Series("p99", one.percentiles(0.99), colour=1),
    ]
    yield _over_time(report, "Publish to ack", latency, shown_ms)
    rates = [
        Series("acked", [settled.acked / seconds for settled in one.settlings]),
        Series("failed", [settled.failed / seconds for settled in one.settlings], colour=1),
        Series("dead", [settled.dead / seconds for settled in one.settlings], colour=3),
    ]
    yield _over_time(report, "Acks, failed deliveries and dead letters", rates, shown_rate)
    yield _over_time(report, "Backlog", [Series("messages", one.depths)], shown_count)
    yield "</div>"


def _over_time(report: Report, title: str, series: Sequence[Series], shown: Shown) -> str:
    chart = line_chart(title, report.times_ms, series, shown)
    values = zip(*(one.values for one in series), strict=True)
    rows = [
        (_moment(start), *("-" if value is None else shown(value) for value in row))
        for start, row in zip(report.times_ms, values, strict=True)
    ]
    return _figure(chart, _table(("window", *(one.name for one in series)), rows))


def _bars(title: str, what: str, bars: Sequence[Bar], shown: Shown) -> str:
    rows = [(bar.name, shown(bar.value)) for bar in bars]
    return _figure(bar_chart(title, _biggest(bars), shown), _table((what, "messages"), rows))


def _biggest(bars: Sequence[Bar]) -> Sequence[Bar]:
    """All bars, or the biggest if there are too many for a chart; the table has all."""
    if len(bars) <= _BARS_MAX:
        return bars
    return sorted(bars, key=lambda bar: bar.value, reverse=True)[:_BARS_MAX]


def _figure(chart: str, table: str) -> str:
    return f"<figure>{chart}<details><summary>Numbers</summary>{table}</details></figure>"


def _table(names: Row, rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows[:_ROWS_MAX])
    more = f"<p>{len(rows) - _ROWS_MAX} more rows are in the Parquet tables.</p>" if len(rows) > _ROWS_MAX else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>'


def _cells(row: Iterable[str]) -> str:
    first, *rest = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest)


def _tiles(totals: Iterable[tuple[str, str]]) -> str:
    tiles = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in totals)
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _anchor(topic: TopicFigures) -> str:
    return f"topic-{escape(topic.name)}"


def _moment(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
