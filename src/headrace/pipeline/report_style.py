"""How a report's page looks, on light and on dark; the colours differ in brightness, too."""

from __future__ import annotations

from typing import Final

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
