"""Marks in the work of a device, of which torch's events are faked."""

from __future__ import annotations

import pytest
import torch

from load.bench.timing import Mark


class Event:
    """As torch's: the time between two that the device has not reached is an error."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at, self.reached = Event.made, False
        Event.made += 1

    def record(self) -> None: ...

    def synchronize(self) -> None:
        self.reached = True

    def elapsed_time(self, later: Event) -> float:
        assert later.reached, "Both events must be completed before calculating elapsed time."
        return 1e3 * (later.at - self.at)


def test_the_time_between_two_marks_waits_for_the_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    first, _, third = (Mark(torch.device("cuda")) for _ in range(3))
    assert third.seconds_since(first) == 2.0
