"""How the reply of the script `overview` is read: the state of a pool, its seats and its gateways."""

from __future__ import annotations

import logging
from typing import Any

from services import wire
from services.errors import Unreadable
from services.messages import EngineFigures
from services.overview import Overview, Seat
from services.pool.packing import unpack

log = logging.getLogger(__name__)


def read_overview(reply: list[Any]) -> Overview:
    waiting, ended, total_bytes, last_figures, gateways, counters, rows, full, wanted, waiting_tokens, created = reply
    seats = [_seat(row) for row in rows]
    living = [seat.figures for seat in seats if seat.alive and seat.figures]
    return Overview(
        waiting=waiting,
        running=sum(seat.running for seat in seats),
        ended=ended,
        bytes=total_bytes,
        figures=max(living, key=lambda f: (f.longest, len(f.features)), default=_figures(last_figures)),
        seats=seats,
        counters={name.decode(): float(value) for name, value in zip(counters[::2], counters[1::2], strict=True)},
        gateways=len(gateways) // 2,
        full=full == 1,
        waiting_tokens=waiting_tokens,
        created=created,
        gateway_gauges={
            name.decode(): gauges
            for name, packed in zip(gateways[::2], gateways[1::2], strict=True)
            if (gauges := _gauges(packed))
        },
        wanted={name.decode(): int(number) for name, number in zip(wanted[::2], wanted[1::2], strict=True)},
    )


def _seat(row: list[Any]) -> Seat:
    name, alive, running, figures, gauges, summary, owner, epoch = row
    return Seat(
        name=name.decode(),
        alive=alive == 1,
        figures=_figures(figures),
        running=running,
        gauges=_gauges(gauges),
        summary=summary.decode(),
        owner=owner.decode(),
        epoch=epoch.decode(),
    )


def _gauges(data: bytes) -> dict[str, float]:
    return {key.decode(): value for key, value in unpack(data).items()} if data else {}


def _figures(data: bytes) -> EngineFigures | None:
    """None if there are none, or if this build cannot read them: gateways then know of no engine."""
    try:
        return wire.unpack(EngineFigures, data) if data else None
    except Unreadable as error:
        log.warning("an engine's figures: %s", error)
        return None
