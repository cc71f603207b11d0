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
    ExchangeReply,
    Group,
    Logprobs,
    Snapshot,
    SubmitReply,
    TokenEvent,
)
from services.requests import FinishReason, Refusal, SamplingParams, Tenure
from services.seats import ClusterSeats, SeatGrant

assert array("I").itemsize == 4

log = logging.getLogger(__name__)


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


def read_grant(reply: list[Any]) -> SeatGrant:
    granted, epoch, owner, surplus = reply
    return SeatGrant(granted == 1, epoch.decode(), owner.decode(), surplus == 1)


def read_seats(reply: list[Any]) -> ClusterSeats:
    wanted, indices = reply
    return ClusterSeats(wanted, sorted(indices))


def read_submit(reply: list[Any]) -> SubmitReply:
    request, existed, refusal = reply
    refused = None
    if refusal:
        bound, own, held, asked, limit, seconds = refusal
        refused = Refusal(bound.decode(), own == 1, held, asked, limit, seconds)
    return SubmitReply(request.decode(), existed == 1, refused)


def read_exchange(reply: list[Any]) -> ExchangeReply:
    if reply[0] == 0:
        return ExchangeReply(owned=False)
    _, claims, cancelled, foreign, have, lost, surplus = reply
    return ExchangeReply(
        True,
        [_claim(claim) for claim in claims],
        sorted(id.decode() for id in cancelled),
        sorted(id.decode() for id in foreign),
        {id.decode(): count for id, count in zip(have[::2], have[1::2], strict=True)},
        lost == 1,
        surplus == 1,
    )


def _claim(fields: list[Any]) -> Claim:
    id, rank, prompt, output, packed, strikes, priority, ttft, waited, tenant, choice, new_tokens, trace, left = fields
    shared, unreadable = SamplingParams(1), None
    try:
        shared = wire.unpack(SamplingParams, packed)
    except Unreadable as error:  # the other claims of this reply are valid
        unreadable = str(error)
    return Claim(
        id=id.decode(),
        rank=float(rank) / 1e6,
        prompt=unpack_tokens(prompt),
        output=unpack_tokens(output),
        sampling=replace(shared, choice=choice, max_new_tokens=new_tokens),
        strikes=strikes,
        priority=priority,
        ttft=ttft / 1e6,
        waited=waited / 1e6,
        tenant=tenant.decode(),
        unreadable=unreadable,
        trace=trace.decode(),
        before=_tenure(*left) if left else None,
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
    return sum(len(fields[2]) + sum(map(len, fields[3])) for fields in replies if fields)


def read_snapshots(ids: Iterable[str], replies: list[Any]) -> list[Snapshot]:
    """The snapshots in a reply of `listen`."""
    return [read_snapshot(id, fields) for id, fields in zip(ids, replies, strict=True)]


def read_snapshot(id: str, fields: list[Any]) -> Snapshot:
    if not fields:
        return Snapshot(id, known=False)
    prompt_tokens, index, packed, logprobs, end = fields
    tokens = unpack_tokens(packed)
    try:
        asked = [wire.unpack(Logprobs, one) for one in logprobs] or None
        ended = wire.unpack(End, end) if end else None
    except Unreadable as error:
        tokens, asked, ended = [], None, _unreadable(error)
    return Snapshot(id, True, int(prompt_tokens), int(index), tokens, asked, ended)


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
