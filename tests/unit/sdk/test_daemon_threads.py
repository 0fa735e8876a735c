"""Handlers run in threads that are reused, limited, and do not keep the process alive."""

from __future__ import annotations

import threading

import pytest

from headrace.sdk.daemon_threads import DaemonThreads


def test_calls_run_in_at_most_so_many_threads_which_are_reused() -> None:
    threads = DaemonThreads(2, "workers")
    together = threading.Barrier(2, timeout=20)

    def work(is_paired: bool) -> str:
        if is_paired:
            together.wait()
        assert threading.current_thread().daemon
        return threading.current_thread().name

    names = {call.result(20) for call in [threads.submit(work, True) for _ in range(2)]}
    names |= {threads.submit(work, False).result(20) for _ in range(10)}
    threads.shutdown(wait=False)
    assert names == {"workers_1", "workers_2"}


def test_an_exception_is_raised_by_the_result() -> None:
    threads = DaemonThreads(1, "workers")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(20)
    assert threads.submit(int, "7").result(20) == 7
    threads.shutdown(wait=False)
