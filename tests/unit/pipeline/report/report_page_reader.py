"""Parse a report page: tiles, tables and charts by heading."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class PageReader(HTMLParser):
    """Fails on tags that do not close. `tiles` are by the heading above them, `tables` by chart, or heading if none."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.charts: list[str] = []
        self.tiles: dict[str, dict[str, str]] = {}
        self.tables: dict[tuple[str, str], list[list[str]]] = {}
        self._open: list[str] = []
        self._chart = ""
        self._term = ""
        self._text = ""
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        self._text = ""
        if tag == "svg":
            self._chart = dict(attrs)["aria-label"] or ""
            self.charts.append(self._chart)
        if tag in {"h1", "h2", "h3"}:
            self._chart = ""
        if tag == "tr":
            self._rows.append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self._open)
        text = self._text.strip()
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(text)
        elif tag == "dt":
            self._term = text
        elif tag == "dd":
            self.tiles.setdefault(self.headings[-1], {})[self._term] = text
        elif tag in {"th", "td"}:
            self._rows[-1].append(text)
        elif tag == "figure":
            self._chart = ""

    @property
    def _rows(self) -> list[list[str]]:
        return self.tables.setdefault((self.headings[-1], self._chart), [])
