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
    Group,
    Logprobs,
    NewSequence,
    SeatGrant,
    Snapshot,
    TokenEvent,
)
from services.overview import Overview, Seat
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
    for s in sequences:
        _check_logprobs(s.id, s.output, s.logprobs)
    return pack(
        [
            [
                s.id,
                pack_tokens(s.prompt),
                len(s.prompt) + s.sampling.max_new_tokens,
                sequence_bytes(s),
                wire.pack(s.sampling),
                pack_tokens(s.output),
                [wire.pack(one) for one in s.logprobs or ()],
            ]
            for s in sequences
        ]
    )


def pack_commits(commits: list[Commit]) -> bytes:
    """A batch as `lua/fragments/publish.lua` describes it."""
    extras: list[Any] = []
    for place, commit in enumerate(commits, 1):
        _check_logprobs(commit.id, commit.tokens, commit.logprobs)
        if commit.logprobs or commit.end:
            logprobs = [wire.pack(one) for one in commit.logprobs or ()]
            extras += (place, logprobs or False, wire.pack(commit.end) if commit.end else False)
    return pack(
        [
            [commit.id for commit in commits],
            [commit.index for commit in commits],
            [len(commit.tokens) for commit in commits],
            pack_tokens(token for commit in commits for token in commit.tokens),
            extras,
        ]
    )


def _check_logprobs(id: str, tokens: list[int], logprobs: list[Logprobs] | None) -> None:
    if logprobs is not None and len(logprobs) != len(tokens):
        raise ValueError(f"{id}: {len(tokens)} tokens, log probabilities of {len(logprobs)}")


def pack_counters(counters: dict[str, float]) -> bytes:
    """Names and increments by turns; increments as text, which the server adds without loss."""
    flat: list[str] = []
    for name, by in counters.items():
        if not math.isfinite(by):
            raise ValueError(f"counter {name} cannot grow by {by}")
        flat += (name, repr(float(by)))
    return pack(flat)


# --- replies -------------------------------------------------------------------------------------------------


def read_grant(reply: list[Any]) -> SeatGrant:
    granted, epoch, owner = reply
    return SeatGrant(granted == 1, epoch.decode(), owner.decode())


def read_exchange(reply: list[Any]) -> ExchangeReply:
    if reply[0] == 0:
        return ExchangeReply(owned=False)
    _, claims, cancelled, foreign, have, lost = reply
    return ExchangeReply(
        True,
        [_claim(claim) for claim in claims],
        sorted(id.decode() for id in cancelled),
        sorted(id.decode() for id in foreign),
        {id.decode(): count for id, count in zip(have[::2], have[1::2], strict=True)},
        lost == 1,
    )


def _claim(fields: list[Any]) -> Claim:
    id, rank, prompt, output, sampling, strikes, priority, ttft, waited, tenant = fields
    return Claim(
        id=id.decode(),
        rank=float(rank) / 1e6,
        prompt=unpack_tokens(prompt),
        output=unpack_tokens(output),
        sampling=wire.unpack(SamplingParams, sampling),
        strikes=strikes,
        priority=priority,
        ttft=ttft / 1e6,
        waited=waited / 1e6,
        tenant=tenant.decode(),
    )


GROUP_FIELDS = ("ids", "tenant", "body", "open", "resumable", "background", "deleted")


def read_group(request: str, fields: list[bytes | None]) -> Group | None:
    """The `GROUP_FIELDS` of a group; None if there is none to be seen."""
    ids, tenant, body, open, resumable, background, deleted = fields
    if ids is None or deleted is not None:
        return None
    assert tenant is not None
    assert body is not None
    sequences = [id.decode() for id in unpack(ids)]
    return Group(request, tenant.decode(), sequences, body, open == b"0", resumable == b"1", background == b"1")


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
    """The events of one stream entry, a batch, in the order they came about."""
    ids, indices, counts, packed, extras = unpack(entry)
    extra_of = {extras[i]: (extras[i + 1], extras[i + 2]) for i in range(0, len(extras), 3)}
    tokens = unpack_tokens(packed)
    events: list[TokenEvent] = []
    first = 0
    for place, (raw_id, index, count) in enumerate(zip(ids, indices, counts, strict=True), 1):
        id = raw_id.decode()
        logprobs, end = extra_of.get(place, (False, False))
        for i in range(count):
            asked = wire.unpack(Logprobs, logprobs[i]) if logprobs else None
            events.append(TokenEvent(id, index + i, tokens[first + i], asked))
        if end:
            events.append(TokenEvent(id, index + count, None, end=wire.unpack(End, end)))
        first += count
    return events


def read_overview(reply: list[Any]) -> Overview:
    waiting, ended, total_bytes, last_figures, gateways, counters, rows, lines = reply
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
        lines=lines,
    )


def _seat(row: list[Any]) -> Seat:
    name, alive, running, figures, gauges, summary, owner = row
    return Seat(
        name=name.decode(),
        alive=alive == 1,
        figures=_figures(figures),
        running=running,
        gauges={key.decode(): value for key, value in unpack(gauges).items()} if gauges else {},
        summary=summary.decode(),
        owner=owner.decode(),
    )


def _figures(data: bytes) -> EngineFigures | None:
    return wire.unpack(EngineFigures, data) if data else None
