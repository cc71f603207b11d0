"""Packing of messages as script arguments, and reading of the scripts' replies.

A token is 4 bytes, little-endian. What no script reads (sampling parameters, ends, log probabilities, figures) is
msgpack inside an opaque string, where integers above 2**53, which Lua's numbers cannot represent, are safe.
"""

from __future__ import annotations

import logging
import math
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import msgpack

from services import wire
from services.errors import Unreadable
from services.messages import (
    Claim,
    Commit,
    End,
    EngineFigures,
    ExchangeReply,
    Group,
    Logprobs,
    Snapshot,
    SubmitReply,
    TokenEvent,
)
from services.overview import Overview, SeatOverview
from services.requests import FinishReason, Refusal, SamplingParams, Tenure
from services.seats import ClusterSeats, SeatGrant

assert (array("I").itemsize, sys.byteorder) == (4, "little")

log = logging.getLogger(__name__)


def pack_tokens(tokens: Iterable[int]) -> bytes:
    return array("I", tokens).tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    return array("I", data).tolist()


def pack(value: object) -> bytes:
    """msgpack for Lua's cmsgpack, which does not know the bin type."""
    return cast(bytes, msgpack.packb(value, use_bin_type=False))


def unpack(data: bytes) -> Any:
    """Unpack what `pack` or cmsgpack packed; strings are returned as bytes."""
    return msgpack.unpackb(data, raw=True)


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


# --- arguments -----------------------------------------------------------------------------------------------


def batch_of(commits: list[Commit]) -> list[Any]:
    """Return commits in the format that `lua/fragments/notify.lua` describes."""
    extras: list[Any] = []
    for place, commit in enumerate(commits, 1):
        check_logprobs(commit.id, commit.tokens, commit.logprobs)
        if commit.logprobs or commit.end:
            logprobs = [wire.pack(one) for one in commit.logprobs or ()]
            extras += (place, logprobs or False, wire.pack(commit.end) if commit.end else False)
    return [
        [commit.id for commit in commits],
        [commit.index for commit in commits],
        [len(commit.tokens) for commit in commits],
        pack_tokens(token for commit in commits for token in commit.tokens),
        extras,
    ]


def check_logprobs(id: str, tokens: list[int], logprobs: list[Logprobs] | None) -> None:
    """Raise ValueError unless `logprobs` is None or as long as `tokens`."""
    if logprobs is not None and len(logprobs) != len(tokens):
        raise ValueError(f"{id}: {len(tokens)} tokens, log probabilities of {len(logprobs)}")


def increments(counters: Mapping[str, float]) -> list[str]:
    """Return names and increments, alternating. Increments are text, which the server adds without loss."""
    flat: list[str] = []
    for name, by in counters.items():
        if not math.isfinite(by):
            raise ValueError(f"counter {name} cannot grow by {by}")
        flat += (name, repr(float(by)))
    return flat


# --- replies -------------------------------------------------------------------------------------------------


def by_name(flat: list[Any]) -> dict[str, Any]:
    """Return what alternates in a part of a reply, names and values, as a map."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def read_grant(reply: list[Any]) -> SeatGrant:
    r = by_name(reply)
    return SeatGrant(r["granted"] == 1, r["epoch"].decode(), r["owner"].decode(), r["surplus"] == 1)


def read_seats(reply: list[Any]) -> ClusterSeats:
    r = by_name(reply)
    return ClusterSeats(r["wanted"], sorted(r["indices"]))


def read_submit(reply: list[Any]) -> SubmitReply:
    r = by_name(reply)
    refused = None
    if refusal := by_name(r["refusal"]):
        refused = Refusal(**refusal | {"bound": refusal["bound"].decode(), "own": refusal["own"] == 1})
    return SubmitReply(r["request"].decode(), r["existed"] == 1, refused)


def read_exchange(reply: list[Any]) -> ExchangeReply:
    if not reply:
        return ExchangeReply(owned=False)
    r = by_name(reply)
    return ExchangeReply(
        owned=True,
        claims=[_claim(by_name(claim)) for claim in r["claims"]],
        cancelled=sorted(id.decode() for id in r["cancelled"]),
        foreign=sorted(id.decode() for id in r["foreign"]),
        have=by_name(r["have"]),
        lost=r["lost"] == 1,
        surplus=r["surplus"] == 1,
        forgotten=sorted(id.decode() for id in r["forgotten"]),
    )


def _claim(c: dict[str, Any]) -> Claim:
    shared, unreadable = SamplingParams(1), None
    try:
        shared = wire.unpack(SamplingParams, c["sampling"])
    except Unreadable as error:  # the other claims of this reply are valid
        unreadable = str(error)
    return Claim(
        id=c["id"].decode(),
        rank=float(c["rank"]) / 1e6,
        prompt=unpack_tokens(c["prompt"]),
        output=unpack_tokens(c["output"]),
        sampling=replace(shared, choice=c["choice"], max_new_tokens=c["max_new_tokens"]),
        strikes=c["strikes"],
        priority=c["priority"],
        ttft=c["ttft"] / 1e6,
        waited=c["waited"] / 1e6,
        tenant=c["tenant"].decode(),
        unreadable=unreadable,
        trace=c["trace"].decode(),
        before=_tenure(*c["before"]) if c["before"] else None,
        remember=c["remember"] == 1,
    )


def _tenure(seat: bytes, epoch: bytes, claimed: int, left: int, taken: int) -> Tenure:
    return Tenure(seat.decode(), epoch.decode(), claimed / 1e6, left / 1e6, taken == 1)


GROUP_FIELDS = ("ids", "tenant", "body", "open", "resumable", "background", "deleted", "trace")


def read_group(request: str, fields: list[bytes | None]) -> Group | None:
    """A group from its `GROUP_FIELDS`; None if it is unknown or hidden."""
    ids, tenant, body, open, resumable, background, deleted, trace = fields
    if ids is None or deleted is not None:
        return None
    assert tenant is not None
    assert body is not None
    sequences = [id.decode() for id in unpack(ids)]
    traced = (trace or b"").decode()
    return Group(request, tenant.decode(), sequences, body, open == b"0", resumable == b"1", background == b"1", traced)


def size_of(replies: list[Any]) -> int:
    """Bytes of tokens and log probabilities in a reply of `listen`."""
    snapshots = [by_name(reply) for reply in replies if reply]
    return sum(len(s["tokens"]) + sum(map(len, s["logprobs"])) for s in snapshots)


def read_snapshots(ids: Iterable[str], replies: list[Any]) -> list[Snapshot]:
    """The snapshots in a reply of `listen`."""
    return [read_snapshot(id, reply) for id, reply in zip(ids, replies, strict=True)]


def read_snapshot(id: str, reply: list[Any]) -> Snapshot:
    if not reply:
        return Snapshot(id, known=False)
    s = by_name(reply)
    tokens = unpack_tokens(s["tokens"])
    try:
        asked = [wire.unpack(Logprobs, one) for one in s["logprobs"]] or None
        ended = wire.unpack(End, s["end"]) if s["end"] else None
    except Unreadable as error:
        tokens, asked, ended = [], None, _unreadable(error)
    return Snapshot(id, True, int(s["prompt_tokens"]), int(s["index"]), tokens, asked, ended)


def read_events(entry: bytes) -> list[TokenEvent]:
    """The events of one stream entry, a batch, in order."""
    ids, indices, counts, packed, extras = unpack(entry)
    extra_of = {extras[i]: (extras[i + 1], extras[i + 2]) for i in range(0, len(extras), 3)}
    tokens = unpack_tokens(packed)
    events: list[TokenEvent] = []
    first = 0
    for place, (raw_id, index, count) in enumerate(zip(ids, indices, counts, strict=True), 1):
        id, own = raw_id.decode(), tokens[first : first + count]
        if place in extra_of:
            events += _events(id, index, own, *extra_of[place])
        else:
            events += [TokenEvent(id, at, token) for at, token in enumerate(own, index)]
        first += count
    return events


def read_stream(after: str, entries: list[list[Any]]) -> tuple[str, list[TokenEvent], bool]:
    """The cursor after these entries of a gateway's stream, their events, and whether entries between the cursor
    `after`, "0" at first, and these are missing."""
    events: list[TokenEvent] = []
    gap = False
    for entry, (_, packed) in entries:
        cursor = entry.decode()
        gap = gap or (after != "0" and not _follows(cursor, after))
        events += read_events(packed)
        after = cursor
    return after, events, gap


def _follows(entry: str, cursor: str) -> bool:
    """Whether the stream entry `<tick>-<n>` directly follows the cursor, an entry too."""
    return int(entry.partition("-")[2]) == int(cursor.partition("-")[2]) + 1


def _events(id: str, index: int, tokens: list[int], logprobs: Any, end: Any) -> list[TokenEvent]:
    """The events of one item of a batch. If it cannot be read, the sequence ends, for this reader only."""
    events: list[TokenEvent] = []
    try:
        for i, token in enumerate(tokens):
            asked = wire.unpack(Logprobs, logprobs[i]) if logprobs else None
            events.append(TokenEvent(id, index + i, token, asked))
        if end:
            events.append(TokenEvent(id, index + len(tokens), None, end=wire.unpack(End, end)))
    except Unreadable as error:
        events.append(TokenEvent(id, index + len(events), None, end=_unreadable(error)))
    return events


def _unreadable(error: Unreadable) -> End:
    return End(FinishReason.ERROR, error=str(error))


def read_overview(reply: list[Any]) -> Overview:
    r = by_name(reply)
    seats = [_seat(by_name(seat)) for seat in r["seats"]]
    living = [seat.figures for seat in seats if seat.alive and seat.figures]
    gateways = by_name(r["gateways"])
    return Overview(
        waiting=r["waiting"],
        running=sum(seat.running for seat in seats),
        ended=r["ended"],
        bytes=r["bytes"],
        figures=max(living, key=lambda f: (f.longest, len(f.features)), default=_figures(r["figures"])),
        seats=seats,
        counters={name: float(value) for name, value in by_name(r["counters"]).items()},
        gateways=len(gateways),
        full=r["full"] == 1,
        waiting_tokens=r["waiting_tokens"],
        created=r["created"],
        gateway_gauges={name: gauges for name, packed in gateways.items() if (gauges := _gauges(packed))},
        wanted={name: int(number) for name, number in by_name(r["wanted"]).items()},
    )


def _seat(s: dict[str, Any]) -> SeatOverview:
    return SeatOverview(
        name=s["name"].decode(),
        alive=s["alive"] == 1,
        figures=_figures(s["figures"]),
        running=s["running"],
        gauges=_gauges(s["gauges"]),
        summary=s["summary"].decode(),
        owner=s["owner"].decode(),
        epoch=s["epoch"].decode(),
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
