"""The page at /docs, which renders /openapi.json in the browser. It is self-contained and loads no external resources.

The content security policy permits only this script and this style, by their hashes, and connections to this server.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #0b7285; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0.5rem 0 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; text-transform: capitalize; }
code, pre, .path { font: 13px/1.5 ui-monospace, monospace; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.4rem 0; }
summary { cursor: pointer; padding: 0.45rem 0.7rem; }
summary { display: flex; gap: 0.7rem; align-items: baseline; flex-wrap: wrap; }
summary .what { opacity: 0.75; }
summary:focus-visible { outline: 2px solid var(--accent); }
.verb { font-weight: 700; min-width: 4rem; color: var(--accent); }
.body { padding: 0 0.8rem 0.8rem; border-top: 1px solid var(--line); overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td { text-align: left; vertical-align: top; padding: 0.25rem 0.6rem 0.25rem 0; }
td { border-bottom: 1px solid var(--soft); }
pre { background: var(--soft); padding: 0.6rem; border-radius: 4px; overflow-x: auto; margin: 0.3rem 0; }
h3 { font-size: 0.9rem; margin: 0.9rem 0 0.2rem; }
#find { width: 100%; padding: 0.5rem; margin-top: 1rem; font: inherit; }
#find { border: 1px solid var(--line); border-radius: 6px; }
"""

_SCRIPT = """
"use strict";
const element = (name, props, ...children) => {
  const made = Object.assign(document.createElement(name), props || {});
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

let schemas = {};
const named = (schema) => schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema;

const shape = (schema, depth = 0) => {
  if (!schema || depth > 6) return "...";
  const found = named(schema) || {};
  const pad = "  ".repeat(depth + 1);
  if (found.anyOf || found.oneOf) {
    return (found.anyOf || found.oneOf).map((one) => shape(one, depth)).join(" | ");
  }
  if (found.enum) return found.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (found.properties) {
    const required = new Set(found.required || []);
    const lines = Object.entries(found.properties).map(
      ([name, one]) => `${pad}"${name}"${required.has(name) ? "" : "?"}: ${shape(one, depth + 1)}`
    );
    return lines.length ? `{\\n${lines.join(",\\n")}\\n${"  ".repeat(depth)}}` : "{}";
  }
  if (found.type === "array") return `[${shape(found.items || {}, depth)}, ...]`;
  if (found.type === "object") {
    return found.additionalProperties ? `{ name: ${shape(found.additionalProperties, depth)} }` : "{...}";
  }
  const limits = [
    found.minimum !== undefined ? `from ${found.minimum}` : "",
    found.maximum !== undefined ? `to ${found.maximum}` : "",
  ].filter(Boolean).join(" ");
  return (found.type || "any JSON") + (limits ? ` (${limits})` : "");
};

const content = (described) => {
  const box = element("div");
  for (const [type, said] of Object.entries(described || {})) {
    const about = (named(said.schema || {}) || {}).description;
    box.append(element("div", {}, element("code", { textContent: type }), about ? ` ${about}` : ""));
    const text = shape(said.schema);
    if (text !== "any JSON" || type === "application/json") box.append(element("pre", { textContent: text }));
  }
  return box;
};

const parameters = (list) => {
  if (!list.length) return null;
  const rows = list.map((one) => element("tr", {},
    element("td", {}, element("code", { textContent: one.name })),
    element("td", { textContent: one.in + (one.required ? "" : ", optional") }),
    element("td", { textContent: shape(one.schema) }),
    element("td", { textContent: one.description || "" })
  ));
  return element("div", {}, element("h3", { textContent: "Parameters" }), element("table", {}, ...rows));
};

const answers = (responses) => {
  const rows = Object.entries(responses).map(([status, said]) => {
    const isProblem = Number(status) >= 400;
    return element("tr", {},
      element("td", {}, element("code", { textContent: status })),
      element("td", {}, said.description, isProblem ? "" : content(said.content))
    );
  });
  return element("div", {}, element("h3", { textContent: "Responses" }), element("table", {}, ...rows));
};

const operation = (path, method, described) => {
  const body = element("div", { className: "body" });
  const parts = element("summary", {},
    element("span", { className: "verb", textContent: method.toUpperCase() }),
    element("span", { className: "path", textContent: path }),
    element("span", { className: "what", textContent: described.summary })
  );
  const made = element("details", { id: described.operationId }, parts, body);
  made.dataset.text = `${method} ${path} ${described.summary}`.toLowerCase();
  made.addEventListener("toggle", () => {
    if (!made.open || body.childElementCount) return;
    const shown = parameters(described.parameters || []);
    if (shown) body.append(shown);
    if (described.requestBody) {
      body.append(element("h3", { textContent: "Body" }), content(described.requestBody.content));
    }
    body.append(answers(described.responses));
  });
  return made;
};

const render = (api) => {
  schemas = api.components.schemas;
  document.getElementById("version").textContent = `${api.info.title} ${api.info.version}`;
  document.getElementById("about").textContent = api.info.description;
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, described] of Object.entries(methods)) {
      const tag = described.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, described));
    }
  }
  const list = document.getElementById("list");
  for (const [tag, operations] of groups) {
    list.append(element("section", {}, element("h2", { textContent: tag }), ...operations));
  }
  list.append(
    element("h2", { textContent: "Problems" }),
    element("p", { textContent: "Every response with a status of 400 or above has this body; codes never change." }),
    element("pre", { textContent: shape({ $ref: "#/components/schemas/ProblemBody" }) })
  );
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target) { target.open = true; target.scrollIntoView(); }
};

document.getElementById("find").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const one of document.querySelectorAll("details")) one.hidden = !one.dataset.text.includes(wanted);
  for (const one of document.querySelectorAll("section")) one.hidden = !one.querySelector("details:not([hidden])");
});

fetch("openapi.json").then((answer) => answer.json()).then(render).catch((error) => {
  document.getElementById("about").textContent = `Cannot read openapi.json: ${error}`;
});
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace API</title>
<style>{style}</style>
</head>
<body>
<header><h1 id="version">Headrace</h1><p id="about">Loading the API description.</p></header>
<input id="find" type="search" placeholder="Find an operation" aria-label="Find an operation">
<main id="list"></main>
<noscript>This page requires JavaScript to render <a href="openapi.json">openapi.json</a>.</noscript>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; connect-src 'self'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def page() -> bytes:
    return _PAGE.replace("{style}", _STYLE).replace("{script}", _SCRIPT).encode()
