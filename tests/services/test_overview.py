"""Overviews of several pools together."""

from __future__ import annotations

from dataclasses import fields

import pytest

from services.messages import EngineFigures
from services.overview import Overview, SeatOverview, combined

FIGURES = EngineFigures("tiny", 128, 64, 16, 1000, "float32/cpu")
SUMS = ("waiting", "running", "ended", "bytes", "waiting_tokens")


def overview(number: int) -> Overview:
    """An overview of which no field has its default."""
    return Overview(
        waiting=number,
        running=10 * number,
        ended=20 * number,
        bytes=30 * number,
        figures=FIGURES,
        seats=[SeatOverview(f"c/{number}", True, FIGURES, number, {}, "")],
        counters={"tokens": float(number)},
        gateways=number,
        full=True,
        gateway_gauges={str(number): {"requests": 1.0}},
        waiting_tokens=40 * number,
        created=100 * number,
        wanted={"c": 3, str(number): number},
    )


@pytest.mark.parametrize("name", SUMS)
def test_amounts_add_up(name: str) -> None:
    parts = [overview(1), overview(2)]
    assert getattr(combined(parts), name) == sum(getattr(part, name) for part in parts)


def test_no_field_is_left_out() -> None:
    """Each field of two pools is as full as that of one."""
    together, one = combined([overview(1), overview(1)]), overview(1)
    assert [field.name for field in fields(Overview) if bool(getattr(together, field.name)) is not True] == []
    assert together.counters == {"tokens": 2.0}
    assert (together.figures, together.gateways, together.wanted) == (one.figures, 1, one.wanted)


def test_the_larger_number_counts_where_pools_differ() -> None:
    """A pool that was away when the number of engines was set has an earlier one."""
    first, second = overview(5), overview(2)
    first.wanted["c"] = 4
    assert combined([first, second]).wanted["c"] == combined([second, first]).wanted["c"] == 4
