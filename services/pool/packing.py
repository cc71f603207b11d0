"""Messages to script arguments and back.

Tokens travel and rest as 4 bytes each, little-endian. What no script reads (sampling, ends, log probabilities,
figures) is msgpack inside an opaque string: integers above 2**53, which Lua's numbers cannot hold, are safe there.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable
from typing import Any, cast

import msgpack

from services import wire
from services.messages import (
    Claim,
    Commit,
    End,
    EngineFigures,
    ExchangeReply,
    Logprobs,
    NewSequence,
    Overview,
    Seat,
    Snapshot,
    TokenEvent,
)
from services.pool.limits import sequence_bytes
from services.requests import SamplingParams

assert array("I").itemsize == 4


def pack_tokens(tokens: Iterable[int]) -> bytes:
    values = array("I", tokens)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    values = array("I", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def pack(value: object) -> bytes:
    """msgpack as Lua's cmsgpack reads it: it knows no bin type."""
    return cast(bytes, msgpack.packb(value, use_bin_type=False))


def unpack(data: bytes) -> Any:
    """What `pack` or cmsgpack wrote; strings come as bytes."""
    return msgpack.unpackb(data, raw=True)


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


# --- arguments -----------------------------------------------------------------------------------------------


def pack_sequences(sequences: list[NewSequence]) -> bytes:
    return pack(
        [
            [
                s.id,
                pack_tokens(s.prompt),
                len(s.prompt) + s.sampling.max_new_tokens,
                sequence_bytes(s),
                wire.pack(s.sampling),
            ]
            for s in sequences
        ]
    )


def pack_commits(commits: list[Commit]) -> bytes:
    return pack([_commit(c) for c in commits])


def _commit(commit: Commit) -> list[Any]:
    logprobs = commit.logprobs
    if logprobs is not None and len(logprobs) != len(commit.tokens):
        raise ValueError(f"{commit.id}: {len(commit.tokens)} tokens with log probabilities of {len(logprobs)}")
    return [
        commit.id,
        commit.index,
        pack_tokens(commit.tokens),
        [wire.pack(one) for one in logprobs] if logprobs else False,
        wire.pack(commit.end) if commit.end else False,
    ]


def pack_counters(counters: dict[str, float]) -> bytes:
    """Names and increments by turns; increments as text, which the server adds without loss."""
    flat: list[str] = []
    for name, by in counters.items():
        if not math.isfinite(by):
            raise ValueError(f"counter {name} cannot grow by {by}")
        flat += (name, repr(float(by)))
    return pack(flat)


# --- replies -------------------------------------------------------------------------------------------------


def read_exchange(reply: list[Any]) -> ExchangeReply:
    if reply[0] == 0:
        return ExchangeReply(owned=False)
    return ExchangeReply(True, [_claim(claim) for claim in reply[1]], sorted(id.decode() for id in reply[2]))


def _claim(fields: list[bytes]) -> Claim:
    id, rank, prompt, output, sampling = fields
    return Claim(
        id=id.decode(),
        arrival=float(rank) / 1e6,
        prompt=unpack_tokens(prompt),
        output=unpack_tokens(output),
        sampling=wire.unpack(SamplingParams, sampling),
    )


def read_snapshot(id: str, fields: list[Any]) -> Snapshot:
    if not fields:
        return Snapshot(id, known=False)
    prompt_tokens, index, tokens, logprobs, end = fields
    return Snapshot(
        id,
        known=True,
        num_prompt_tokens=int(prompt_tokens),
        index=int(index),
        tokens=unpack_tokens(tokens),
        logprobs=[wire.unpack(Logprobs, one) for one in logprobs] or None,
        end=wire.unpack(End, end) if end else None,
    )


def read_events(entry: bytes) -> list[TokenEvent]:
    """The events of one stream entry, in the order they came about."""
    events: list[TokenEvent] = []
    for id, index, packed, logprobs, end in unpack(entry):
        name, tokens = id.decode(), unpack_tokens(packed)
        for i, token in enumerate(tokens):
            events.append(TokenEvent(name, index + i, token, wire.unpack(Logprobs, logprobs[i]) if logprobs else None))
        if end:
            events.append(TokenEvent(name, index + len(tokens), None, end=wire.unpack(End, end)))
    return events


def read_overview(reply: list[Any]) -> Overview:
    waiting, ended, total_bytes, last_figures, gateways, counters, rows = reply
    seats = [_seat(row) for row in rows]
    living = [seat.figures for seat in seats if seat.alive and seat.figures]
    return Overview(
        waiting=waiting,
        running=sum(seat.running for seat in seats),
        ended=ended,
        bytes=total_bytes,
        figures=max(living, key=lambda f: f.num_slots, default=_figures(last_figures)),
        seats=seats,
        counters={name.decode(): float(value) for name, value in zip(counters[::2], counters[1::2], strict=True)},
        gateways=gateways,
    )


def _seat(row: list[Any]) -> Seat:
    name, alive, running, figures, gauges, summary = row
    return Seat(
        name=name.decode(),
        alive=alive == 1,
        figures=_figures(figures),
        running=running,
        gauges={key.decode(): value for key, value in unpack(gauges).items()} if gauges else {},
        summary=summary.decode(),
    )


def _figures(data: bytes) -> EngineFigures | None:
    return wire.unpack(EngineFigures, data) if data else None
