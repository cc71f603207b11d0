"""Runs a function with a stack that is deep enough for any grammar that is not too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

STACK = 1 << 28  # bytes of addresses; memory is used as far as the stack grows

T = TypeVar("T")
_lock = threading.Lock()


def deep_stack(function: Callable[[], T]) -> T:
    """What `function` returns or raises. llguidance recurses along chains of rules, and a stack that overflows ends the
    process."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    with _lock:
        before = threading.stack_size(STACK)
        try:
            thread = threading.Thread(target=run, name="grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()
