"""The bounds of a pool, on plain objects: what is there is counted anew whenever somebody asks."""

from __future__ import annotations

from services.messages import Submission
from services.pool.limits import Bounds
from services.pool.reference_groups import Groups
from services.pool.reference_state import Group
from services.refusals import Refusal


class Bounded(Groups):
    def _held(self, tenant: str | None = None) -> Bounds:
        """What a tenant has in the pool, or all have; of `bytes` only those of groups that have not ended."""
        groups = [g for g in self._groups.values() if tenant in (None, g.tenant)]
        waiting = [s for _, id in self._waiting if tenant in (None, (s := self._sequences[id]).group.tenant)]
        return Bounds(
            waiting=len(waiting),
            waiting_tokens=sum(len(s.new.prompt) for s in waiting),
            streams=sum(g.open > 0 and g.stream for g in groups),
            bytes=sum(g.bytes for g in groups if g.open),
            stored=sum(g.open == 0 for g in groups),
        )

    def _refusal(self, submission: Submission, group: Group) -> Refusal | None:
        """Why the group does not enter; None if it may, place having been made for it."""
        needs = Bounds(
            waiting=len(submission.sequences),
            waiting_tokens=sum(len(s.prompt) for s in submission.sequences),
            streams=int(group.stream),
            bytes=group.bytes,
        )
        own = True, self._held(group.tenant), self.limits.bounds_of(group.tenant)
        all = False, self._held(), self.limits.bounds
        for bound in ("waiting", "waiting_tokens", "streams"):
            for is_own, held, limits in (own, all):
                has, need, limit = (getattr(which, bound) for which in (held, needs, limits))
                if limit and need and has + need > limit:
                    return Refusal(bound, is_own, has, need, limit)
        if not self._make_place(group.tenant, group.bytes):
            over = own[2].bytes > 0 and own[1].bytes + group.bytes > own[2].bytes
            is_own, held, limits = own if over else all
            return Refusal("bytes", is_own, held.bytes, group.bytes, limits.bytes)
        self._keep_few(group.tenant)
        return None

    def _bytes(self, tenant: str | None = None) -> int:
        return sum(group.bytes for group in self._groups.values() if tenant in (None, group.tenant))

    def _stored(self, tenant: str | None = None) -> list[Group]:
        """Ended groups, the oldest first."""
        return [group for group in self._ended if tenant in (None, group.tenant)]

    def _make_place(self, tenant: str, more: int) -> bool:
        """Drop ended groups for so many bytes; nothing if that would not be enough."""
        most, own_most = self.limits.max_bytes, self.limits.bounds_of(tenant).bytes
        own_stored = sum(group.bytes for group in self._stored(tenant))
        if own_most and self._bytes(tenant) - own_stored + more > own_most:
            return False
        holders = {group.tenant for group in self._groups.values()} | {tenant}
        if self._bytes() + more > most:
            share, freeable = most / len(holders), float(own_stored)
            for other in holders - {tenant}:
                stored = sum(group.bytes for group in self._stored(other))
                freeable += max(0.0, min(stored, self._bytes(other) - share))
            if self._bytes() + more - freeable > most:
                return False
        while own_most and self._bytes(tenant) + more > own_most:
            self._drop(self._stored(tenant)[0])
        while self._bytes() + more > most:
            has = {other: self._bytes(other) for other in holders}
            whose = self._victim(has, tenant, more, most / len(holders))
            if whose is None:
                return False
            self._drop(self._stored(whose)[0])
        return True

    def _keep_few(self, tenant: str) -> None:
        """Of ended groups, with place for one that has yet to end."""
        most, own_most = self.limits.max_stored, self.limits.bounds_of(tenant).stored
        while own_most and len(self._stored(tenant)) >= own_most:
            self._drop(self._stored(tenant)[0])
        holders = {group.tenant for group in self._groups.values()} | {tenant}
        while most and len(self._stored()) >= most:
            has = {other: len(self._stored(other)) for other in holders}
            whose = self._victim(has, tenant, 1, most / len(holders))
            if whose is None:
                return
            self._drop(self._stored(whose)[0])

    def _victim(self, has: dict[str, int], tenant: str, more: int, share: float) -> str | None:
        """Whose oldest ended group goes: the tenant's own if it is above its share, else that of who is furthest above
        it, else the tenant's own."""
        own = tenant if self._stored(tenant) else None
        if own and has[tenant] + more > share:
            return own
        above = [other for other in has if other != tenant and has[other] > share and self._stored(other)]
        return min(above, key=lambda other: (-has[other], other.encode()), default=own)
