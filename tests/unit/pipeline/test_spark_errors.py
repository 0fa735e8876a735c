"""An error of Spark is summarized in one line."""

from __future__ import annotations

import pytest

from headrace.pipeline.spark_errors import is_of_spark, location_in, readable

STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed \
when running Python data source instance: Traceback (most recent call last):
  File "/spark/worker.py", line 10, in main
    process()
  File "/home/me/x.py", line 7, in shown
    raise ValueError("no good value")
ValueError: no good value

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:2)
"""

CHAINED = """Traceback (most recent call last):
  File "a.py", line 1
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2
headrace.model.errors.UnknownTopicOrPartition: there is no topic orders
"""

ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] There is no column `amout`. Did you mean `amount`? \
SQLSTATE: 42703; line 1 pos 7;
'Project ['amout]
+- SubqueryAlias orders
"""


@pytest.mark.parametrize(
    ("text", "own_file", "line"),
    [
        (STREAM, "", "ValueError: no good value"),
        (STREAM, "/home/me/x.py", "ValueError: no good value (/home/me/x.py, line 7)"),
        (CHAINED, "", "UnknownTopicOrPartition: there is no topic orders"),
        (
            ANALYSIS,
            "",
            "There is no column `amout`. Did you mean `amount`? [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
        ("[STREAM_FAILED] Query x failed: [DATA_GONE] It is gone. SQLSTATE: 1", "", "It is gone. [DATA_GONE]"),
        (
            "An error occurred while calling x.\n: java.lang.IllegalStateException: It is stopped.\n\tat a.b(C:1)\n",
            "",
            "IllegalStateException: It is stopped.",
        ),
        (
            "An error.\n: a.b.SparkException: Job aborted\n\tat a.b(C:1)\nCaused by: java.io.IOException: Disk full\n",
            "",
            "IOException: Disk full",
        ),
        ("something else\n  and more", "", "something else"),
        ("", "", "RuntimeError"),
        ("Traceback (most recent call last):\n  File 'a'\nKeyboardInterrupt", "", "KeyboardInterrupt"),
    ],
)
def test_the_cause_is_one_line(text: str, own_file: str, line: str) -> None:
    assert readable(RuntimeError(text), own_file) == line


def test_a_long_error_is_shortened() -> None:
    assert len(readable(RuntimeError("x" * 5000))) == 600


def test_errors_of_spark_are_recognised() -> None:
    from pyspark.errors import PySparkException

    assert is_of_spark(PySparkException("x"))
    assert not is_of_spark(ValueError("x"))


def test_the_location_is_the_innermost_line_of_the_file() -> None:
    code = compile("def f():\n    raise ValueError\n\nf()\n", "/home/me/y.py", "exec")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        exec(code, {})
    assert location_in(caught.value, "/home/me/y.py") == " (/home/me/y.py, line 2)"
    assert location_in(caught.value, "/home/me/z.py") == ""
