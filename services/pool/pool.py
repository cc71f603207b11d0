"""RequestPool: requests, their tokens and the seats that run them, in a Redis or Valkey server.

The pool is the only state that must survive. A token exists once a script has committed it here; before that, only the
engine has seen it. So any process may die at any moment, and its successor goes on from what is here.

A gateway submits a group of sequences. Each sequence waits in the queue of its tenant until a scheduler's exchange
claims it for a seat. That scheduler alone, as the owner of the seat's epoch, commits its tokens and at last its end,
and every commit is an event for the gateways that listen. If the owner dies, the next one gets a new epoch, the
sequences wait again with the tokens that they have, and whatever the old owner still writes is refused.

Each method that changes the pool runs the Lua script of the same name, which is one transaction; `lua/README.md`
describes scripts and keys. All of them are repeat-safe: after `PoolUnavailable` the caller does not know whether the
call ran, and sends it again unchanged.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from services import wire
from services.messages import Exchange, ExchangeReply, Group, Snapshot, Submission, SubmitReply, TokenEvent
from services.overview import Overview
from services.pool import packing, scripts
from services.pool.broadcast import Broadcast
from services.pool.connection import Connection
from services.pool.group_packing import pack_group
from services.pool.limits import Limits
from services.pool.packing import increments, micros, pack
from services.requests import Refusal, is_line
from services.seats import ClusterSeats, SeatGrant

# The most bytes of a packed submission: an eighth of what a server accepts in one argument (`proto-max-bulk-len`).
MESSAGE_BYTES = 64 << 20

LAYOUT = 3  # of the keys; increment it if a script of the previous build could not read them
FEW = 64  # sequences that are packed in the event loop: 2,000 with long sampling parameters take a second
LONG_REPLY = 64 << 10  # bytes of tokens and log probabilities above which a reply is unpacked in a thread
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,72}")


class RequestPool:
    """One pool, which serves one model. Bound to the event loop it is used in.

    `url`: see `address`. `name` matches [A-Za-z0-9_.-]{1,72}. With `wait_replicas` above 0, a call that changes the
    pool returns, and events are returned, only when so many replicas of the server have what the call wrote or the
    events tell; otherwise it raises PoolUnavailable, like a call whose reply was lost.
    """

    def __init__(self, url: str, name: str = "default", limits: Limits | None = None, wait_replicas: int = 0) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a pool's name is 1 to 72 of A-Z a-z 0-9 _ . -; got {name!r}")
        self.name = name
        self.limits = limits or Limits()
        self._prefix = f"orca:{{{name}}}:"
        self._server = Connection(url, wait_replicas)
        self._gaps: set[str] = set()  # gateways whose stream was trimmed before they had read it

    @property
    def last_call(self) -> float:
        """When the last call to the server began (monotonic clock)."""
        return self._server.last_call

    async def connect(self) -> None:
        """Check the server and load the scripts. Raises PoolUnavailable."""
        await self._server.check()

    async def close(self) -> None:
        await self._server.close()

    # --- gateways ---

    async def submit(self, submission: Submission) -> SubmitReply:
        """Put a group of sequences into the pool, all or none; its gateway listens to them.

        If the request id, or the tenant's idempotency key, is known, the reply names the existing group (`existed`).
        The gateway then listens to its sequences that have not ended; `listen` returns the tokens committed before. A
        sequence's `output` counts as committed; the sequence is queued even if it may have no more tokens. The group
        is refused if it would exceed a bound of the limits, or if it takes more than `MESSAGE_BYTES` to send. A group
        without `output` ends if no sequence of it is claimed by its deadline, `queue_timeout` after its arrival.
        """
        few = len(submission.sequences) <= FEW
        packed = self._submit_of(submission) if few else await asyncio.to_thread(self._submit_of, submission)
        if (length := len(packed)) > MESSAGE_BYTES:
            return SubmitReply(submission.request, refused=Refusal("message", False, 0, length, MESSAGE_BYTES))
        reply = await self._server.run("submit", self._prefix, packed)
        return packing.read_submit(reply)

    def _submit_of(self, submission: Submission) -> bytes:
        """Return the packed arguments of `submit`."""
        limits = self.limits
        key, ranked = submission.idempotency_key, limits.order == "priority" and not is_line(submission.priority)
        known = any(s.output for s in submission.sequences)
        return self._pack(
            "submit",
            request=submission.request,
            gateway=_gateway(submission.gateway),
            tenant=submission.tenant,
            key=key is not None and f"{submission.tenant}\0{key}",
            body=submission.body,
            bounds=(limits.bounds, limits.bounds_of(submission.tenant), limits.max_queue_wait),
            keep_ended=micros(limits.keep_ended),
            resumable=submission.resumable,
            background=submission.background,
            grace=micros(limits.grace),
            priority=submission.priority,
            ttft=micros(submission.ttft or (limits.ttft_target if ranked else 0)),
            ranked=ranked,
            ageing=micros(limits.ageing) if ranked else 0,
            waited=micros(submission.waited),
            queue_timeout=0 if known else micros(submission.queue_timeout),
            adapter=submission.sequences[0].sampling.adapter,
            trace=submission.trace,
            remember=submission.remember,
            **pack_group(submission).arguments,
        )

    async def cancel(self, request: str) -> bool:
        """Cancel a group; False if it is unknown or has ended. What runs ends when its seat commits the end."""
        return bool(await self._run("cancel", request=request))

    async def unlisten(self, gateway: str, request: str) -> None:
        """The gateway stops listening to a group.

        If no gateway listens to the group any more, it goes on if it is in the background; it is cancelled after
        `Limits.grace` if it is resumable, unless a gateway listens to it again by then; otherwise it is cancelled at
        once. A group whose last gateway dies or unregisters gets the grace in any case. Once the gateway listens to
        the group again, it must not repeat an earlier `unlisten`.
        """
        await self._run("unlisten", gateway=_gateway(gateway), request=request)

    async def delete(self, request: str) -> bool:
        """Forget a group; False if it is unknown, as it is to a repeat of this call.

        A group that has not ended is cancelled and forgotten at its end. From now on `group` does not know it, and its
        idempotency key is free.
        """
        return bool(await self._run("delete", request=request))

    async def group(self, request: str) -> Group | None:
        """What was submitted under this id; None if it is unknown, has expired or was deleted."""
        key = f"{self._prefix}group:{request}"
        return packing.read_group(request, await self._server.command("HMGET", key, *packing.GROUP_FIELDS))

    async def knows(self, request: str, tenant: str, idempotency_key: str | None) -> bool:
        """Whether a submission with this id or key would find an earlier group."""
        if await self.group(request) is not None:
            return True
        if idempotency_key is None:
            return False
        field = f"{tenant}\0{idempotency_key}"
        return bool(await self._server.command("HEXISTS", f"{self._prefix}idempotency", field))

    async def listen(self, gateway: str, from_indices: dict[str, int]) -> list[Snapshot]:
        """The gateway listens to sequences. Returns a snapshot of each from the given index on, in the given order.

        Later tokens arrive as events. An event may repeat a token of the snapshot; no token is missed in between.
        """
        replies = await self._run("listen", gateway=_gateway(gateway), wanted=list(from_indices.items()))
        if packing.size_of(replies) > LONG_REPLY:
            return await asyncio.to_thread(packing.read_snapshots, from_indices, replies)
        return packing.read_snapshots(from_indices, replies)

    async def heartbeat(
        self,
        gateway: str,
        call: int,
        counters: dict[str, float],
        ttl: float = 10.0,
        gauges: dict[str, float] | None = None,
        settings: str = "",
    ) -> bool:
        """Stay registered for `ttl` seconds and add increments to the pool's counters. `call` numbers count from 1.
        `gauges` are the gateway's own figures, which the overview shows while it is registered, and `settings` is what
        `settings_of_gateways` returns meanwhile.

        False if the gateway may have missed events since its last heartbeat, because its registration had expired, its
        stream was trimmed or the server lost the stream's tail. It must then read events from "0" again, and listen
        again to all sequences that have not ended.
        """
        missed = gateway in self._gaps
        known = await self._run(
            "heartbeat",
            gateway=_gateway(gateway),
            call=call,
            counters=increments(counters),
            ttl=micros(ttl),
            gauges=pack(gauges or {}),
            settings=settings,
        )
        self._gaps.discard(gateway)
        return bool(known) and not missed

    async def settings_of_gateways(self) -> list[str]:
        """What the registered gateways say of their settings; nothing of those that say nothing."""
        now = int((await self._server.command("TIME"))[0])
        names = await self._server.command("ZRANGEBYSCORE", f"{self._prefix}gateways", micros(now), "+inf")
        keys = [f"{self._prefix}gateway:{name.decode()}" for name in names]
        found = [await self._server.command("HGET", key, "settings") for key in keys]
        return [settings.decode() for settings in found if settings]

    async def read_events(self, gateway: str, after: str, timeout: float) -> tuple[str, list[TokenEvent]]:
        """The new cursor and the events after the cursor `after`, "0" at first. Waits up to `timeout` s for any."""
        wait = max(1, round(timeout * 1000))
        stream = f"{self._prefix}events:{gateway}"
        read = ("XREAD", "COUNT", 128, "BLOCK", wait, "STREAMS", stream, after)
        reply = await self._server.block_confirmed(timeout, self._prefix, *read)
        if not reply:
            return after, []
        cursor, events, gap = packing.read_stream(after, reply[0][1])
        if gap:
            self._gaps.add(gateway)
        return cursor, events

    async def unregister(self, gateway: str) -> None:
        """Forget a gateway that shuts down."""
        await self._run("unregister", gateway=_gateway(gateway))

    async def hold(self, name: str, holder: str, seconds: float) -> str | None:
        """Take the lock `name`, or renew it, for so many seconds; None while another holder has it.

        Returns the lock's epoch, a decimal number greater than all epochs before, including any that the server lost.
        A renewal returns the same epoch; a different one means that the lock was free in between.
        """
        reply = await self._run("hold", name=name, holder=holder, ttl=round(seconds * 1000))
        return reply.decode() or None

    async def unhold(self, name: str, holder: str) -> None:
        """Free the lock `name` if this holder has it."""
        await self._run("unhold", name=name, holder=holder)

    async def adapters(self) -> bytes:
        """The registry of adapters, as the last `adapt` gave it; empty before the first."""
        return await self._server.command("HGET", f"{self._prefix}adapters", "registry") or b""

    async def adapt(self, version: int, registry: bytes) -> bool:
        """Replace the registry of adapters by one whose version is greater. False, without any effect, if another one
        of this version, or a later one, is there."""
        return bool(await self._run("adapt", version=version, registry=registry))

    async def adapted(self) -> dict[str, str]:
        """The digest of its adapter for each request that names one and has not ended."""
        found = packing.by_name(await self._server.command("HGETALL", f"{self._prefix}adapted"))
        return {request: digest.decode() for request, digest in found.items()}

    # --- schedulers ---

    async def acquire(
        self, seat: str, owner: str, lease: float, dead_epoch: str | None = None, after: int = 0
    ) -> SeatGrant:
        """A new epoch on the seat for `lease` seconds; or the holder's, while another owner's lease lives.

        `owner` names one lifetime of one process. `dead_epoch` is an epoch whose owner is known to be dead: the seat is
        taken from it at once. What a dead owner ran waits again, with a soft strike (`lua/fragments/seats.lua`). A
        process that waits for a seat must call this more than twice per lease, because leases start again after a
        longer silence. A new epoch's number is greater than `after`, one of another pool, whose clock may be ahead.
        """
        reply = await self._run(
            "acquire",
            seat=seat,
            owner=owner,
            lease=micros(lease),
            dead_epoch=dead_epoch or "",
            nonce=secrets.token_hex(8),
            after=after,
        )
        return packing.read_grant(reply)

    async def release(
        self,
        seat: str,
        epoch: str,
        struck: Sequence[str] = (),
        removed: bool = False,
        counters: Mapping[str, float] | None = None,
    ) -> bool:
        """Give the seat back; what it ran waits again. `counters` are increments that no exchange carries any more.
        False, without any effect, if the seat has another epoch.

        `struck` are the ids that were in an iteration when the seat's engine died. A sequence that is struck three
        times with no token committed in between ends with an error. A surplus seat whose engine is `removed` is gone.
        """
        reply = await self._run(
            "release",
            seat=seat,
            epoch=epoch,
            struck=sorted(set(struck)),
            removed=removed,
            counters=increments(counters or {}),
        )
        return bool(reply)

    async def engines(self, cluster: str, configured: int, announce: bool = False) -> ClusterSeats:
        """How many engines a cluster is to have, and its seats.

        `configured`, the number in the caller's configuration, counts until `scale` is called, and again if it is
        announced (`announce`) and differs from the number announced before.
        """
        reply = await self._run("engines", cluster=cluster, configured=configured, announce=announce)
        return packing.read_seats(reply)

    async def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Commit tokens, renew the lease, reclaim expired seats and claim sequences, in one script; see `Exchange`.

        `call` numbers count from 1, in steps of one: a larger step shows the pool that its server lost exchanges.
        """
        e = exchange
        reply = await self._run(
            "exchange",
            seat=e.seat,
            epoch=e.epoch,
            call=e.call,
            commits=packing.batch_of(e.commits),
            room=wire.named(e.room),
            idle=e.idle,
            figures=e.figures is not None and wire.pack(e.figures),
            counters=increments(e.counters),
            gauges=pack(e.gauges),
            summary=e.summary,
            keep_ended=micros(self.limits.keep_ended),
            most_wait=micros(self.limits.max_queue_wait),
            holds=e.holds is not None and e.holds,
        )
        return packing.read_exchange(reply)

    async def wait_bell(self, seat: str, timeout: float) -> None:
        """Return when work may wait for a seat whose last exchange was idle, or after `timeout` seconds."""
        await self._server.block(timeout, "BLPOP", f"{self._prefix}bell:{seat}", f"{max(timeout, 0.001):.3f}")

    # --- observers ---

    async def scale(self, cluster: str, engines: int) -> None:
        """Let a cluster have this number of engines; 0 when its model goes. Surplus seats, from this index on, claim
        nothing."""
        if engines < 0:
            raise ValueError(f"a cluster has at least 0 engines, not {engines}")
        await self._run("scale", cluster=cluster, engines=engines)

    def broadcast(self) -> Broadcast:
        """Return the channels of this pool. The caller closes them."""
        return Broadcast(self._server.url, self._prefix)

    async def overview(self) -> Overview:
        return packing.read_overview(await self._run("overview"))

    # --- scripts ---

    async def _run(self, name: str, /, **arguments: Any) -> Any:
        """Return the reply of a script, of which each call here gives all arguments by their names."""
        return await self._server.run(name, self._prefix, self._pack(name, **arguments))

    def _pack(self, name: str, /, **arguments: Any) -> bytes:
        return scripts.script(name).pack(**arguments)


def _gateway(name: str) -> str:
    if not name:
        raise ValueError("a gateway's name is empty")
    return name
