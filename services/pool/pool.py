"""RequestPool: the requests, their tokens and who runs them, in a Redis or Valkey server.

Each method that changes something is one Lua script, named after it in `lua/`, where its rules stand. All are
repeat-safe: after `PoolUnavailable` the caller does not know whether a call ran, and sends it again unchanged.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import astuple

from services import wire
from services.messages import (
    Exchange,
    ExchangeReply,
    Group,
    SeatGrant,
    Snapshot,
    Submission,
    SubmitReply,
    TokenEvent,
)
from services.overview import Overview
from services.pool import packing
from services.pool.connection import Connection
from services.pool.group_packing import pack_group
from services.pool.limits import Limits, behind
from services.pool.packing import micros, pack, pack_counters
from services.refusals import Refusal

# Bytes of a submission's message at most: an eighth of what a server takes in one argument (`proto-max-bulk-len`).
MESSAGE_BYTES = 64 << 20

LAYOUT = 3  # of the keys in the server; to be counted up where a script of the build before could not read them
FEW = 64  # sequences that are packed at once: two thousand with long settings take a second
LONG_REPLY = 64 << 10  # bytes of tokens and log probabilities, which are unpacked in some milliseconds
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class RequestPool:
    """One pool; it serves one model. `name` is one of [A-Za-z0-9_.-]{1,64}. Bound to the event loop it is used in."""

    def __init__(self, url: str, name: str = "default", limits: Limits | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a pool's name is 1 to 64 of A-Z a-z 0-9 _ . -; got {name!r}")
        self.name = name
        self.limits = limits or Limits()
        self._prefix = f"orca:{{{name}}}:"
        self._server = Connection(url)
        self._packed_bounds: tuple[Limits, dict[str, bytes]] = self.limits, {}  # by tenant
        self._gaps: set[str] = set()  # gateways whose stream was cut before they read it

    async def connect(self) -> None:
        """Check the server and load the scripts. Raises PoolUnavailable."""
        await self._server.check()

    async def close(self) -> None:
        await self._server.close()

    # --- gateways ---

    async def submit(self, submission: Submission) -> SubmitReply:
        """Put a group of sequences in, all or none, and attach its gateway.

        A known request id, or idempotency key of the tenant, gives the group that is there (`existed`); the gateway
        is attached to what of it has not ended, and `attach` gives it the tokens committed before. A sequence's
        `output` counts as committed; it waits to be judged even if that is all it may have. Refused is what would pass
        a bound of the limits, and what takes more than `MESSAGE_BYTES` to say. A group ends when no sequence of it was
        claimed by its deadline, `queue_timeout` after its arrival, and none had output.
        """
        few = len(submission.sequences) <= FEW
        packed = pack_group(submission) if few else await asyncio.to_thread(pack_group, submission)
        if (length := len(packed.message)) > MESSAGE_BYTES:
            return SubmitReply(submission.request, refused=Refusal("message", False, 0, length, MESSAGE_BYTES))
        key, ranked = submission.idempotency_key, self.limits.order == "priority" and not behind(submission.priority)
        reply = await self._server.run(
            "submit",
            self._prefix,
            submission.request,
            _gateway(submission.gateway),
            "" if key is None else f"{submission.tenant}\0{key}",
            submission.body,
            packed.message,
            self._bounds_of(submission.tenant),
            micros(self.limits.keep_ended),
            submission.tenant,
            int(submission.resumable),
            int(submission.background),
            micros(self.limits.grace),
            submission.priority,
            micros(submission.ttft or (self.limits.ttft_target if ranked else 0)),
            micros(self.limits.ageing) if ranked else "",
            micros(submission.waited),
            micros(behind(submission.priority)),
            0 if any(s.output for s in submission.sequences) else micros(submission.queue_timeout),
        )
        return packing.read_submit(reply)

    def _bounds_of(self, tenant: str) -> bytes:
        limits, (known, packed) = self.limits, self._packed_bounds
        if known is not limits:
            self._packed_bounds = limits, (packed := {})
        if tenant not in packed:
            all, own = astuple(limits.bounds), astuple(limits.bounds_of(tenant))
            packed[tenant] = pack([all, own, limits.max_queue_wait])
        return packed[tenant]

    async def cancel(self, request: str) -> bool:
        """Cancel a group; False if it is unknown or has ended. What runs of it ends when its seat says so."""
        return bool(await self._server.run("cancel", self._prefix, request))

    async def detach(self, gateway: str, request: str) -> None:
        """The last that followed this group at the gateway has gone.

        If no gateway listens to it any more, a background group goes on, a resumable one is cancelled when
        `Limits.grace` has passed and nobody has attached again, any other at once. Groups whose last gateway dies or
        unregisters get the grace, whatever they are. Whoever follows the group anew at this gateway must not
        repeat an earlier detach.
        """
        await self._server.run("detach", self._prefix, _gateway(gateway), request)

    async def delete(self, request: str) -> bool:
        """Forget an ended group at once. One that goes on is cancelled, unknown to `group` from now on, its
        idempotency key free, and is forgotten when it has ended. False if it is unknown (a repeat says so too)."""
        return bool(await self._server.run("delete", self._prefix, request))

    async def group(self, request: str) -> Group | None:
        """What was submitted under this id; None if it is unknown, has expired or was deleted."""
        key = f"{self._prefix}group:{request}"
        return packing.read_group(request, await self._server.command("HMGET", key, *packing.GROUP_FIELDS))

    async def attach(self, gateway: str, from_indices: dict[str, int]) -> list[Snapshot]:
        """Listen to sequences; what the pool holds of each from the index given, in the order given.

        Later tokens come as events. An event may repeat a token of the snapshot; none is left out between.
        """
        wanted = pack([[id, index] for id, index in from_indices.items()])
        replies = await self._server.run("attach", self._prefix, _gateway(gateway), wanted)
        if packing.size_of(replies) > LONG_REPLY:
            return await asyncio.to_thread(packing.read_snapshots, from_indices, replies)
        return packing.read_snapshots(from_indices, replies)

    async def heartbeat(self, gateway: str, call: int, counters: dict[str, float], ttl: float = 10.0) -> bool:
        """Stay registered for `ttl` seconds and add increments to the pool's counters. `call` numbers count from 1.

        False if events may have been missed since the last heartbeat (the registration had run out, the stream was
        cut, or the server lost its tail): read events from "0" again and attach again to all that has not ended.
        """
        missed = gateway in self._gaps
        args = (_gateway(gateway), call, pack_counters(counters), micros(ttl))
        known = bool(await self._server.run("heartbeat", self._prefix, *args))
        self._gaps.discard(gateway)
        return known and not missed

    async def read_events(self, gateway: str, after: str, timeout: float) -> tuple[str, list[TokenEvent]]:
        """Events after the cursor `after` ("0" at first) and the new cursor; waits up to `timeout` seconds for any."""
        wait = max(1, round(timeout * 1000))
        stream = f"{self._prefix}events:{gateway}"
        reply = await self._server.block(timeout, "XREAD", "COUNT", 128, "BLOCK", wait, "STREAMS", stream, after)
        if not reply:
            return after, []
        events: list[TokenEvent] = []
        for entry, fields in reply[0][1]:
            cursor = entry.decode()
            if after != "0" and not _follows(cursor, after):
                self._gaps.add(gateway)
            events += packing.read_events(fields[b"e"])
            after = cursor
        return after, events

    async def unregister(self, gateway: str) -> None:
        """Forget a gateway that goes away."""
        await self._server.run("unregister", self._prefix, _gateway(gateway))

    async def hold(self, name: str, holder: str, seconds: float) -> str | None:
        """Take `name`, or renew it, for so many seconds; None while another holder has it.

        What comes back is the epoch of this taking: digits, as a number later than of all takings before, also of those
        that the server lost. A renewal gives the epoch again; another one means that the name was free in between.
        """
        reply = await self._server.run("hold", self._prefix, name, holder, round(seconds * 1000))
        return reply.decode() or None

    async def unhold(self, name: str, holder: str) -> None:
        """Let others have `name`, if this holder has it."""
        await self._server.run("unhold", self._prefix, name, holder)

    # --- schedulers ---

    async def acquire(self, seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> SeatGrant:
        """A new epoch on the seat for `lease` seconds, or who holds it while another owner's lease lives.

        `dead_epoch` says that this epoch's owner is known to be dead: the seat is taken from it at once. What a dead
        owner ran waits again, with a soft strike (`lua/fragments/strikes.lua`). `owner` names one life of one process.
        Whoever waits for a seat calls this more often than every half lease: after a longer silence leases are given
        anew.
        """
        args = (seat, owner, micros(lease), dead_epoch or "", secrets.token_hex(8))
        return packing.read_grant(await self._server.run("acquire", self._prefix, *args))

    async def release(self, seat: str, epoch: str, struck: Sequence[str] = ()) -> None:
        """Give the seat back; what it ran waits again. Nothing happens under another epoch.

        `struck` were in flight when the seat's engine died. One that was struck three times with no token committed
        between ends with an error.
        """
        await self._server.run("release", self._prefix, seat, epoch, pack(sorted(set(struck))))

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit, renew the lease, reap, claim, in one script; see `Exchange`. `call` numbers count from 1, one apart:
        by a leap the pool knows that its server lost exchanges."""
        e = exchange
        reply = await self._server.run(
            "exchange",
            self._prefix,
            e.seat,
            e.epoch,
            e.call,
            packing.pack_commits(e.commits),
            e.room.requests,
            e.room.blocks,
            e.room.block_size,
            int(e.room.whole),
            pack(e.room.yields) if e.room.yields else "",
            int(e.idle),
            wire.pack(e.figures) if e.figures else "",
            pack_counters(e.counters),
            pack(e.gauges),
            e.summary,
            micros(self.limits.keep_ended),
            pack(e.holds) if e.holds is not None else "",
            e.room.slots,
            e.room.guests,
            pack(e.room.tenants) if e.room.guests else "",
        )
        return packing.read_exchange(reply)

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when work may be waiting for a seat whose last exchange was idle, or after `timeout` seconds."""
        await self._server.block(timeout, "BLPOP", f"{self._prefix}bell:{seat}", f"{max(timeout, 0.001):.3f}")

    # --- observers ---

    async def overview(self) -> Overview:
        return packing.read_overview(await self._server.run("overview", self._prefix))


def _gateway(name: str) -> str:
    if not name:
        raise ValueError("a gateway's name is empty")
    return name


def _follows(entry: str, cursor: str) -> bool:
    """Whether stream entry `<time>-<n>` is the next one after the cursor."""
    return int(entry.partition("-")[2]) == int(cursor.partition("-")[2]) + 1
