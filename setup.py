"""The one part that is compiled: optional, since everything it does is also done in Python, only slower.

It is a plain C library without Python's headers, loaded by `headrace.columns.native`; where there is no compiler the
build goes on without it.
"""

from __future__ import annotations

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "headrace.columns._records",
            sources=["src/headrace/columns/records.c"],
            extra_compile_args=["-O3", "-g0", "-std=c11"],
            optional=True,
        )
    ]
)
