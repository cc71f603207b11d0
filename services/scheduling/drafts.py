"""Drafts: guesses at the next tokens of requests, which the engine checks in the iteration that computes them.

A draft is what followed the request's last tokens before, in its own text or in a recent one of its tenant (prompt
lookup, by the longest suffix). It changes no token: the engine keeps a guess only if it is the token that it would have
sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import inf

from services.messages import IterationResult
from services.scheduling.budget import Budget
from services.scheduling.cost_model import CostModel
from services.scheduling.drafting import Drafting, RecentTexts, Shares, Text
from services.scheduling.knobs import Knobs
from services.scheduling.kv_cache_manager import KVCacheManager
from services.scheduling.request_entry import RequestEntry

LEAST_GAIN = 1.2  # times what a guess costs that it must be expected to gain: the cost is an estimate, too
PROBES = 0.01  # of the time that may be spent on guesses of which nothing is known, where no gain is expected
AT_ONCE = 4  # such guesses whose time may be saved up; as many are tried at first
MOST_TENANTS = 1000  # whose shares of right guesses are kept


class Drafter:
    """Gives drafts what an iteration has left, and only where more tokens per second are expected from them."""

    def __init__(self, knobs: Knobs, cost: CostModel, kv: KVCacheManager) -> None:
        self._most, self._cost, self._kv = knobs.num_speculative_tokens, cost, kv
        self.recent = RecentTexts()
        self._shares = lru_cache(MOST_TENANTS)(lambda tenant: Shares())
        self._probes = inf  # seconds that may be spent on them now

    def choose(self, decodes: Iterable[RequestEntry], budget: Budget) -> dict[str, list[int]]:
        """Return drafts for some of the requests of an iteration whose next token is decoded.

        A guess that is right saves a decode: its own cost, and its share of what every iteration costs. It is expected
        to be right if all before it are, and if it is. Guesses are taken in the order of their gain.

        Where a guess would gain if it were sure to be right, but is not expected to, a draft of one token is tried now
        and then. Otherwise nothing would be learned of requests that have no drafts.
        """
        found = [(entry, self.of(entry), draft) for entry in decodes if (draft := self._find(entry))]
        if not found or not self._cost.knows_tokens:
            return {}
        _, per_token, per_pair = self._cost.coefficients
        expected, seconds = budget.decodes_and_seconds
        dearest = per_token + per_pair * max(entry.num_computed_tokens for entry, _, _ in found)
        self._probes = min(self._probes + PROBES * seconds, AT_ONCE * dearest)
        shares = [drafting.share for _, drafting, _ in found]
        heap = [(-share, i) for i, share in enumerate(shares)]
        heapify(heap)
        counts = [0] * len(found)
        while heap:
            likely, i = heappop(heap)
            entry, drafting, draft = found[i]
            context = entry.num_computed_tokens + counts[i]
            cost = per_token + per_pair * context
            least = LEAST_GAIN * cost * expected
            probe = -likely * seconds < least
            if probe and (counts[i] or seconds < least or self._probes < cost or not drafting.unsure):
                continue
            if not budget.take_draft(context):
                continue
            if probe:
                drafting.probe = cost
                self._probes -= cost
            counts[i] += 1
            expected -= likely
            seconds += cost
            if counts[i] < len(draft):
                heappush(heap, (likely * shares[i], i))
        for (_, drafting, _), count in zip(found, counts, strict=True):
            if not count:
                drafting.decline()
        return {entry.id: draft[:n] for (entry, _, draft), n in zip(found, counts, strict=True) if n}

    def _find(self, entry: RequestEntry) -> list[int]:
        """Return the guesses for a request that this iteration decodes, as many as its length and its blocks allow."""
        drafting = self.of(entry)
        most = min(self._most, entry.max_tokens - entry.num_tokens)
        if most > 0 and entry.capacity - entry.num_computed_tokens < most:
            self._kv.extend_for_drafts(entry)
            most = min(most, entry.capacity - entry.num_computed_tokens)
        return drafting.find(max(0, most))

    def of(self, entry: RequestEntry) -> Drafting:
        """Return what drafts of a request need, which is made when it is asked for first."""
        if entry.drafting is None:
            prompt, output, key = entry.prompt, entry.output, (entry.tenant, entry.cache_salt)
            text = self.recent.add(entry.id, key, prompt, output) if entry.remember else Text(prompt, output)
            entry.drafting = Drafting(text, output, self.recent.runs(key), self._shares(entry.tenant))
        return entry.drafting

    def learn(self, entry: RequestEntry, guesses: int, result: IterationResult) -> None:
        """Learn from the result of an iteration with a draft of `guesses` tokens for this request."""
        if (drafting := entry.drafting) and entry.id in result.tokens:
            right = len(result.more.get(entry.id, ()))
            drafting.learn(right, guesses)
            if right:  # it has saved what it cost
                self._probes += drafting.probe
            drafting.probe = 0.0
