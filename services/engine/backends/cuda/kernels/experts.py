"""Experts around their products: which ones a token goes to, the tokens of each, and the sum of a token's outputs.

A place is one of a token's choices, best first: place i is choice i % chosen of token i // chosen. Nothing is added or
counted by atomics, and the host learns of nothing, so a graph can have all of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.spec import ExpertsSpec

BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Routes:
    """Where tokens go, expert after expert: `places` [tokens * chosen], of which those of expert i end before `ends`
    [experts] i. Int32."""

    places: torch.Tensor
    ends: torch.Tensor
    chosen: int  # by each token


def choose(
    logits: torch.Tensor, correction: torch.Tensor | None, spec: ExpertsSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts that tokens go to, int32, and their shares, float32: both [tokens, chosen], see ExpertsSpec. Of equal
    experts the first is chosen. `logits` [tokens, at least experts] are float32.

    A token with a logit that is not a number goes to the first experts, with shares that are no numbers."""
    tokens = len(logits)
    chosen = torch.empty(tokens, spec.chosen, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, spec.chosen, device=logits.device)
    if tokens:
        _choose[(tokens,)](
            chosen,
            shares,
            logits,
            correction,
            STEP=logits.shape[1],
            COUNT=spec.count,
            CHOSEN=spec.chosen,
            NORMALISED=spec.normalised,
            SIGMOID=spec.sigmoid,
            SCALE=spec.scale,
            BLOCK=triton.next_power_of_2(spec.count),
            RANKS=triton.next_power_of_2(spec.chosen),
            num_warps=1,
            **early(logits.device),
        )
    return chosen, shares


def sort(chosen: torch.Tensor, experts: int) -> Routes:
    """The routes of tokens that go to `chosen` [tokens, chosen] of so many experts."""
    places = torch.empty(chosen.numel(), dtype=torch.int32, device=chosen.device)
    ends = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    _sort[(experts,)](places, ends, chosen, chosen.numel(), BLOCK=BLOCK, num_warps=4, **early(chosen.device))
    return Routes(places, ends, chosen.shape[1])


def combine(
    outputs: torch.Tensor,
    shares: torch.Tensor,
    shared: torch.Tensor | None = None,
    gates: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sums [tokens, hidden] of `outputs` [tokens * chosen, hidden], which are those of places, times `shares`
    [tokens, chosen], best first; plus `shared` [tokens, hidden], times the sigmoid of `gates` [tokens], if there are
    any."""
    (tokens, chosen), hidden = shares.shape, outputs.shape[1]
    out = torch.empty(tokens, hidden, dtype=outputs.dtype, device=outputs.device)
    if tokens:
        _combine[(tokens, triton.cdiv(hidden, BLOCK))](
            out,
            outputs,
            shares,
            shared,
            gates,
            STEP=gates.stride(0) if gates is not None else 0,
            CHOSEN=chosen,
            HIDDEN=hidden,
            BLOCK=BLOCK,
            num_warps=4,
            **early(outputs.device),
        )
    return out


@triton.jit
def _choose(
    chosen,
    shares,
    logits,
    correction,
    STEP: tl.constexpr,
    COUNT: tl.constexpr,
    CHOSEN: tl.constexpr,
    NORMALISED: tl.constexpr,
    SIGMOID: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    RANKS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    token = tl.program_id(0)
    expert, ranks = tl.arange(0, BLOCK), tl.arange(0, RANKS)
    inside = expert < COUNT
    logit = tl.load(logits + token * STEP + expert, inside, float("-inf"))
    undefined = tl.max((logit != logit).to(tl.int32)) > 0
    if SIGMOID:
        weight = 1.0 / (1.0 + tl.exp(-logit))
        total = 1.0
    else:
        weight = tl.exp(logit - tl.max(logit))
        total = tl.sum(weight)
    scores = logit
    if correction is not None:
        scores = weight / total + tl.load(correction + expert, inside, 0.0)
    scores = tl.where(undefined, -expert.to(tl.float32), scores)
    left = inside
    best_shares = tl.zeros((RANKS,), tl.float32)
    of_chosen = 0.0
    for rank in range(CHOSEN):
        highest = tl.max(tl.where(left, scores, float("-inf")))
        best = tl.min(tl.where(left & (scores == highest), expert, COUNT - 1))
        share = tl.sum(tl.where(expert == best, weight, 0.0))
        tl.store(chosen + token * CHOSEN + rank, best)
        best_shares = tl.where(ranks == rank, share, best_shares)
        of_chosen += share
        left &= expert != best
    if NORMALISED:
        total = of_chosen
    best_shares = tl.where(undefined, float("nan"), best_shares / total * SCALE)
    tl.store(shares + token * CHOSEN + ranks, best_shares, ranks < CHOSEN)


@triton.jit(do_not_specialize=["count"])
def _sort(places, ends, chosen, count, BLOCK: tl.constexpr, EARLY: tl.constexpr = False):
    """A program for each expert counts the places of those before it, and then writes its own."""
    wait(EARLY)
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before, own = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, count, BLOCK):
        found = tl.load(chosen + begin + at, begin + at < count, 1 << 30)
        before += (found < expert).to(tl.int32)
        own += (found == expert).to(tl.int32)
    place = tl.sum(before)
    end = place + tl.sum(own)
    tl.store(ends + expert, end)
    for begin in range(0, tl.where(place < end, count, 0), BLOCK):
        found = tl.load(chosen + begin + at, begin + at < count, 1 << 30)
        mine = (found == expert).to(tl.int32)
        tl.store(places + place + tl.cumsum(mine, 0) - 1, begin + at, mine > 0)
        place += tl.sum(mine)


@triton.jit
def _combine(
    out,
    outputs,
    shares,
    shared,
    gates,
    STEP: tl.constexpr,
    CHOSEN: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in range(CHOSEN):
        place = token * CHOSEN + rank
        one = tl.load(outputs + place * HIDDEN + column, inside, 0.0).to(tl.float32)
        # explicit fma: what is fused into a sum is not the compiler's choice
        total = tl.fma(one, tl.broadcast_to(tl.load(shares + place), one.shape), total)
    if shared is not None:
        more = tl.load(shared + token * HIDDEN + column, inside, 0.0).to(tl.float32)
        share = 1.0
        if gates is not None:
            share = 1.0 / (1.0 + tl.exp(-tl.load(gates + token * STEP)))
        total = tl.fma(more, tl.zeros((BLOCK,), tl.float32) + share, total)
    tl.store(out + token * HIDDEN + column, total.to(out.dtype.element_ty), inside)
