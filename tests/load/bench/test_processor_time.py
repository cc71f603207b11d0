"""Tables of threads, and the samples of py-spy and perf."""

from __future__ import annotations

import os

import pytest

from load.bench.parts import start
from load.bench.processor_time.functions import innermost, symbols
from load.bench.processor_time.threads import Load, rows_of, spent
from load.processes import title_of


def test_threads_of_one_name_are_added_up_and_cheap_ones_left_out() -> None:
    own = os.getpid()
    before = {(own, 1): ("main", 1.0), (own, 2): ("io-1", 1.0), (own, 9): ("gone", 1.0)}
    after = {(own, 1): ("main", 1.5), (own, 2): ("io-1", 1.1), (own, 3): ("io-2", 0.3), (own, 4): ("rest", 0.001)}
    found = spent(before, after)
    process = start.short(title_of(own))
    assert found == {
        (process, "main"): 0.5,
        (process, "io"): pytest.approx(0.4),
        (process, "rest"): pytest.approx(0.001),
    }
    assert rows_of([Load("x", found, 10)], 0.01) == [
        ["in all", "", "90.100"],
        [f"**{process}**", "", "90.100"],
        ["", "main", "50.000"],
        ["", "io", "40.000"],
    ]


def test_samples_count_for_the_innermost_function() -> None:
    lines = [
        "<module> (a.py:1);run (asyncio/base_events.py:604);send (x/y/socket.py:10) 7",
        "<module> (a.py:1);send (x/y/socket.py:12) 2",
        "<module> (a.py:1);run (asyncio/base_events.py:604) 1",
        "",
    ]
    assert innermost(lines) == {"send (y/socket.py)": 9, "run (asyncio/base_events.py)": 1}


def test_the_lines_of_perf() -> None:
    lines = ["", " 2.50%;redis;[kernel.kallsyms];[k] tcp_sendmsg", "12.05%;engine;/x/kernels.so;[.] decode;more", "# x"]
    assert symbols(lines) == [
        (12.05, "engine", "kernels.so", "[.] decode;more"),
        (2.5, "redis", "[kernel.kallsyms]", "[k] tcp_sendmsg"),
    ]
