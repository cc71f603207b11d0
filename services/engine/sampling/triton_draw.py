"""Draws from whole vocabularies on CUDA: min_p, top_k, top_p, noise and the winner (see `truncation`, `noise`).

Nothing is sorted. A list of a draw's tokens has all that can win:

- With top_k, the tokens that are at least as likely as the k-th likeliest of all chunks' likeliest ones: the k
  likeliest tokens, and few others.
- Without, the tokens whose noise lifts them over a floor. The largest of all noisy scores is Gumbel noise above the
  logarithm of the sum of all e^score, so a floor a little below that leaves a few tokens of any distribution. What the
  chunks' likeliest tokens have of the sum is known before the others are read, and is enough. The winner is the first
  in the order of the list's noisy scores that top_p keeps: if less than its share weighs more than it.

A list says by itself whether its winner is the draw's. If not, or if too many tokens are in it, all tokens are read
again and again: each pass finds two bits of the score at which k tokens, or p of the weight, are reached.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.engine.sampling import truncation
from services.engine.sampling.noise import UNIFORMS
from services.engine.sampling.triton_rows import DEPTH, tile, weights

LISTED = 2048  # the most tokens of a list
PART = 2048  # tokens of a program of `_race`, which is one warp
BLOCK = 256  # tokens of it at once
WIDTH = 2048  # the columns of a tile of `_settle` and `_search`
LOG2_E = tl.constexpr(truncation.LOG2_E)
BELOW = tl.constexpr(3.0)  # the floor below the sum's logarithm: no token is over it once in e^(e^3) draws
ERROR = tl.constexpr(0.0015)  # of a power of 2, more than all rounding
FARTHEST = tl.constexpr(0x7F800000)  # the distance of minus infinity


def draw(
    rows: tuple[torch.Tensor, torch.Tensor],
    maxima: torch.Tensor,
    sources: torch.Tensor,
    limits: truncation.DeviceTruncation,
    keys: torch.Tensor,
) -> torch.Tensor:
    """The tokens [draws], int64, that are drawn from logits of vocabularies.

    Draw i is from row `sources[i]` of both tensors of `rows` [rows, vocab], float32, one after the other, whose chunks
    have these `maxima` (see `triton_rows`). `keys` [draws] are those of the noise.
    """
    logits, others = rows
    draws, (first_rows, vocab), chunks = len(sources), logits.shape, maxima.shape[1]
    tokens, counts, reaches = (
        torch.empty(draws, dtype=dtype, device=logits.device) for dtype in (torch.int64, torch.int32, torch.int32)
    )
    tops, floors = torch.empty(draws, device=logits.device), torch.empty(draws, device=logits.device)
    lists = torch.empty(draws, LISTED, dtype=torch.int32, device=logits.device)
    where = logits, others, first_rows, sources, vocab
    plan = tops, floors, reaches, counts
    most = triton.next_power_of_2(chunks)
    _plan[(draws,)](*plan, maxima, sources, *limits, chunks, LISTED=LISTED, CHUNKS=most, num_warps=8)
    grid = draws, triton.cdiv(vocab, PART)
    _race[grid](lists, *plan, *where, *limits, keys, LISTED=LISTED, PART=PART, BLOCK=BLOCK, num_warps=1)
    # weights have the same bits in all implementations
    sizes = {"UNIT": 1.0 / UNIFORMS, "LISTED": LISTED, "WIDTH": WIDTH, "num_warps": 16, "enable_fp_fusion": False}
    # two programs of `_settle` fit on a multiprocessor, which hides what a single one waits for
    _settle[(draws,)](tokens, lists, *plan, *where, *limits, keys, **sizes, maxnreg=64)
    _search[(draws,)](tokens, lists, *plan, *where, *limits, keys, **sizes)
    return tokens


@triton.jit
def _row(logits, others, first_rows, sources, vocab, mine):
    source = tl.load(sources + mine)
    row = logits + source * vocab
    if source >= first_rows:
        row = others + (source - first_rows) * vocab
    return row


@triton.jit
def _scores(logit, top, temperature):
    """Scores, and how far each is below the likeliest: an integer that grows with it."""
    score = logit - top
    if temperature != 1.0:
        score = tl.div_rn(score, temperature)
    return score, tl.abs(score).to(tl.int32, bitcast=True)


@triton.jit
def _within(lowest):
    """The distance at the logarithm of min_p."""
    return tl.abs(lowest).to(tl.int32, bitcast=True)


@triton.jit
def _plan(
    tops,
    floors,
    reaches,
    counts,
    maxima,
    sources,
    temperatures,
    lowest,
    top_ks,
    top_ps,
    chunks,
    LISTED: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """What is known of a draw from the largest logits of its chunks: which distance its list reaches, its floor, and
    whether there is a list."""
    mine = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    held = chunk < chunks
    most = tl.load(maxima + tl.load(sources + mine) * chunks + chunk, held, other=float("-inf"))
    top, temperature, top_k = tl.max(most), tl.load(temperatures + mine), tl.load(top_ks + mine)
    score, distance = _scores(most, top, temperature)
    reach = _within(tl.load(lowest + mine))
    some = tl.sum(tl.where(held & (distance <= reach), tl.exp2(score * LOG2_E), 0.0))
    floor = tl.log(tl.maximum(1.0, some * tl.load(top_ps + mine).to(tl.float32) * 0.999)) - BELOW
    count = tl.where((top > float("-inf")) & (top < float("inf")) & (top_k <= chunks), 0, LISTED + 1)
    if (top_k > 0) & (count == 0):
        kth = 0
        for bit in range(31):
            further = kth + (1 << (30 - bit))
            if tl.sum((held & (distance < further)).to(tl.int32)) < top_k:
                kth = further
        reach = tl.minimum(reach, kth)
    tl.store(tops + mine, top)
    tl.store(floors + mine, floor)
    tl.store(reaches + mine, reach)
    tl.store(counts + mine, count)


@triton.jit
def _bits(key, id):
    """`noise.bits`."""
    state = key.to(tl.uint64, bitcast=True) + (id + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit(do_not_specialize=["first_rows"])
def _race(
    lists,
    tops,
    floors,
    reaches,
    counts,
    logits,
    others,
    first_rows,
    sources,
    vocab,
    temperatures,
    lowest,
    top_ks,
    top_ps,
    keys,
    LISTED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a part's tokens to the list of a draw, which has no order."""
    mine, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(counts + mine) <= LISTED:
        row = _row(logits, others, first_rows, sources, vocab, mine)
        top, temperature, reach = tl.load(tops + mine), tl.load(temperatures + mine), tl.load(reaches + mine)
        top_k, key = tl.load(top_ks + mine), tl.load(keys + mine)
        lift = 32.0 + ERROR - tl.load(floors + mine) * LOG2_E
        for begin in range(part * PART, tl.minimum((part + 1) * PART, vocab), BLOCK):
            id = begin + tl.arange(0, BLOCK)
            held = id < vocab
            score, distance = _scores(tl.load(row + id, held, other=float("-inf")), top, temperature)
            held &= distance <= reach
            if top_k == 0:  # noise that lifts a score over the floor is from uniforms below e^(score - floor)
                uniform = (_bits(key, id) >> 32).to(tl.uint32).to(tl.float32)
                held &= uniform <= tl.exp2(score * LOG2_E + lift)
            if tl.max(held.to(tl.int32)) > 0:
                place = tl.atomic_add(counts + mine + tl.zeros_like(id), 1, mask=held, sem="relaxed")
                tl.store(lists + mine * LISTED + place, id, held & (place < LISTED))


@triton.jit
def _noise(key, id, UNIT: tl.constexpr):
    """`noise.gumbel` from the same bits."""
    u = (_bits(key, id) >> 11).to(tl.float32) * UNIT
    # -log(1 - u): a large value of noise comes from a small u, whose digits 1 - u would lose
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6 + u * (1 / 7)))))))
    exponential = tl.where(u < 0.125, series, -tl.log(1.0 - u))
    return -tl.log(tl.minimum(tl.maximum(exponential, 5.5511151231257827e-17), 64.0))


@triton.jit
def _leader(noisy, id, distance, vocab):
    """The largest noisy score, its token, of equal ones the lowest, and its distance."""
    best = tl.max(noisy)
    lead = tl.min(tl.where(noisy == best, id, vocab - 1))
    return best, lead, tl.min(tl.where((noisy == best) & (id == lead), distance, FARTHEST))


@triton.jit(do_not_specialize=["first_rows"])
def _settle(
    tokens,
    lists,
    tops,
    floors,
    reaches,
    counts,
    logits,
    others,
    first_rows,
    sources,
    vocab,
    temperatures,
    lowest,
    top_ks,
    top_ps,
    keys,
    UNIT: tl.constexpr,
    LISTED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Find the token of a draw without top_k in its list; -1 if a token outside the list may win."""
    mine = tl.program_id(0).to(tl.int64)
    count, winner = tl.load(counts + mine), -1
    if (count <= LISTED) & (tl.load(top_ks + mine) == 0):
        row = _row(logits, others, first_rows, sources, vocab, mine)
        top, temperature, key = tl.load(tops + mine), tl.load(temperatures + mine), tl.load(keys + mine)
        farthest, top_p, floor = _within(tl.load(lowest + mine)), tl.load(top_ps + mine), tl.load(floors + mine)
        at = tl.arange(0, LISTED)
        held = at < count
        id = tl.load(lists + mine * LISTED + at, held, other=0)
        score, distance = _scores(tl.load(row + id, held, other=float("-inf")), top, temperature)
        noisy = tl.where(held & (distance <= farthest), score + _noise(key, id, UNIT), float("-inf"))
        best, winner, far = _leader(noisy, id, distance, vocab)
        if best < floor:
            winner = -1
        elif (top_p < 1.0) & (far > 0):  # the likeliest stays in any case
            second, its_winner, its_far = _leader(tl.where(distance < far, noisy, float("-inf")), id, distance, vocab)
            third, last_winner, last_far = _leader(
                tl.where(distance < its_far, noisy, float("-inf")), id, distance, vocab
            )
            whole = tl.zeros((WIDTH,), tl.int64)
            nearer, than_second, than_third = whole, whole, whole
            for begin in range(0, vocab, DEPTH * WIDTH):
                place = begin + tile(WIDTH)
                logit = tl.load(row + place, place < vocab, other=float("-inf"))
                one, its = _scores(logit, top, temperature)
                weight = tl.where(its <= farthest, weights(one), 0)
                whole += tl.sum(weight, 0)
                nearer += tl.sum(tl.where(its < far, weight, 0), 0)
                than_second += tl.sum(tl.where(its < its_far, weight, 0), 0)
                than_third += tl.sum(tl.where(its < last_far, weight, 0), 0)
            goal = (top_p * tl.sum(whole).to(tl.float64)).to(tl.int64)
            if tl.sum(nearer) >= goal:
                stays = (its_far == 0) | (tl.sum(than_second) < goal)
                winner = tl.where(stays & (second >= floor), its_winner, -1)
                if not stays:
                    stays = (last_far == 0) | (tl.sum(than_third) < goal)
                    winner = tl.where(stays & (third >= floor), last_winner, -1)
    tl.store(tokens + mine, winner)


@triton.jit
def _tokens(row, list, listed, count, begin, top, temperature, WIDTH: tl.constexpr):
    """A tile of a list's tokens, or of a vocabulary's: tokens, whether there are such, scores, distances."""
    id = begin + tile(WIDTH)
    held = id < count
    if listed:
        id = tl.load(list + id, held, other=0)
    score, distance = _scores(tl.load(row + id, held, other=float("-inf")), top, temperature)
    return id, held, score, distance


@triton.jit
def _reached(row, list, listed, count, top, temperature, farthest, goal, WEIGH: tl.constexpr, WIDTH: tl.constexpr):
    """The distance within which there are `goal` tokens, or tokens of this weight; none beyond `farthest` counts."""
    far = 0
    for step in range(16):
        shift = tl.maximum(29 - 2 * step, 0)
        one, two, three = far + (1 << shift), far + (2 << shift), far + (3 << shift)
        nearer_one = tl.zeros((WIDTH,), tl.int64)
        nearer_two, nearer_three = nearer_one, nearer_one
        for begin in range(0, count, DEPTH * WIDTH):
            _, held, score, distance = _tokens(row, list, listed, count, begin, top, temperature, WIDTH)
            amount = weights(score) if WEIGH else held.to(tl.int64)
            amount = tl.where(held & (distance <= farthest), amount, 0)
            nearer_one += tl.sum(tl.where(distance < one, amount, 0), 0)
            nearer_two += tl.sum(tl.where(distance < two, amount, 0), 0)
            nearer_three += tl.sum(tl.where(distance < three, amount, 0), 0)
        steps = (tl.sum(nearer_one) < goal).to(tl.int32)
        steps += (tl.sum(nearer_two) < goal).to(tl.int32)
        steps += (tl.sum(nearer_three) < goal).to(tl.int32)
        far += steps << shift
    return far


@triton.jit(do_not_specialize=["first_rows"])
def _search(
    tokens,
    lists,
    tops,
    floors,
    reaches,
    counts,
    logits,
    others,
    first_rows,
    sources,
    vocab,
    temperatures,
    lowest,
    top_ks,
    top_ps,
    keys,
    UNIT: tl.constexpr,
    LISTED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Find the token of a draw that `_settle` has not decided: in its list if all that can win are there, else in the
    whole vocabulary."""
    mine = tl.program_id(0).to(tl.int64)
    if tl.load(tokens + mine) < 0:
        row, list = _row(logits, others, first_rows, sources, vocab, mine), lists + mine * LISTED
        top, temperature, key = tl.load(tops + mine), tl.load(temperatures + mine), tl.load(keys + mine)
        farthest, top_k, top_p = _within(tl.load(lowest + mine)), tl.load(top_ks + mine), tl.load(top_ps + mine)
        count = tl.load(counts + mine)
        listed = (top_k > 0) & (count <= LISTED)
        count = tl.where(listed, count, vocab)
        if (top_k > 0) & (top_k <= count):
            kth = _reached(row, list, listed, count, top, temperature, FARTHEST, top_k, False, WIDTH)
            farthest = tl.minimum(farthest, kth)
        if top_p < 1.0:
            weight = tl.zeros((WIDTH,), tl.int64)
            for begin in range(0, count, DEPTH * WIDTH):
                _, held, score, distance = _tokens(row, list, listed, count, begin, top, temperature, WIDTH)
                weight += tl.sum(tl.where(held & (distance <= farthest), weights(score), 0), 0)
            goal = (top_p * tl.sum(weight).to(tl.float64)).to(tl.int64)
            nucleus = _reached(row, list, listed, count, top, temperature, farthest, goal, True, WIDTH)
            farthest = tl.minimum(farthest, nucleus)
        best, winner = float("-inf"), 0
        for begin in range(0, count, DEPTH * WIDTH):
            id, held, score, distance = _tokens(row, list, listed, count, begin, top, temperature, WIDTH)
            noisy = tl.where(held & (distance <= farthest), score + _noise(key, id, UNIT), float("-inf"))
            its, lead, _ = _leader(noisy, id, distance, vocab)
            if (its > best) | ((its == best) & (lead < winner)):
                best, winner = its, lead
        tl.store(tokens + mine, winner)
