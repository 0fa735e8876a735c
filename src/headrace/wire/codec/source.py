"""Writing the source of one function, line by line, for the codec's two compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class FunctionSource:
    """Lines of Python, the constants that they name, and fresh names for their variables."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = dict(constants)
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """Name a value, the same value by the same name."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(stem)
        self.constants[name] = value
        return name

    def struct_method(self, method: str, letters: str) -> str:
        """Name a bound method, `pack` or `unpack_from`, of the struct with these letters."""
        name = f"{method}_{letters.replace('?', 'o')}"
        if name not in self.constants:
            self.constants[name] = getattr(Struct(">" + letters), method)
        return name

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile what was written; `title` shows up in tracebacks in the place of a file."""
        exec(compile("\n".join(self._lines) + "\n", f"<{title}>", "exec"), self.constants)
        function: Callable[..., Any] = self.constants[name]
        return function
