"""The one part that is compiled: optional, since everything it does is also done in Python, only slower.

It is a plain C library without Python's headers, loaded by `headrace.native.library`; where there is no compiler the
build goes on without it.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/headrace/native")

setup(
    ext_modules=[
        Extension(
            "headrace.native._library",
            sources=sorted(map(str, NATIVE.glob("*.c"))),
            depends=sorted(map(str, NATIVE.glob("*.h"))),
            extra_compile_args=["-O3", "-g0", "-std=c11"],
            optional=True,
        )
    ]
)
