"""From qkv to attention: head norms and rotary embeddings of queries and keys, and the write to the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait
from services.engine.batch.kv_cache import scale_numbers

TOKENS = 16  # of one program: a block of the default size, whose keys are then written together


@dataclass(frozen=True, slots=True)
class Rotary:
    """Tables [positions, head_dim / 2], float32."""

    cosines: torch.Tensor
    sines: torch.Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """What becomes of a layer's queries, keys and values, see DecoderSpec; `heads` are those of queries. A layer that
    has no keys of its own has no values either."""

    heads: int
    epsilon: float
    rotary: Rotary | None = None
    query_norm: torch.Tensor | None = None  # [head_dim], or of all heads
    key_norm: torch.Tensor | None = None
    norms_all_heads: bool = False
    norms_after_rotary: bool = False
    value_norms: bool = False
    has_keys: bool = True
    has_values: bool = True  # else values are what keys are before norm and rotary embeddings


def place(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    how: Heads,
) -> None:
    """Normalise and rotate the queries of qkv [tokens, (heads + 2 * kv_heads) * dim] in place; write its keys, likewise
    changed, and its values to `slots` [tokens] of the cache. Tokens with a negative slot are not written."""
    tokens, width = qkv.shape
    kv_heads, block_size, short = keys.shape[1], keys.shape[3], scale_numbers(keys.dtype)
    dim = keys.shape[2] - short
    heads, rotary, normed = how.heads, how.rotary, how.query_norm is not None
    untouched = 0 if rotary or normed else heads
    scales = None
    if normed and how.norms_all_heads:
        scales = torch.empty(tokens, 2, device=qkv.device)
        _scale_all_heads[(tokens, 2)](
            scales,
            qkv,
            WIDTH=width,
            QUERIES=heads * dim,
            KEYS=kv_heads * dim,
            EPSILON=how.epsilon,
            BLOCK=triton.next_power_of_2(heads * dim),
            num_warps=4,
            **early(qkv.device),
        )
    all_heads = heads + (2 * kv_heads if how.has_keys else 0)
    _place[(triton.cdiv(tokens, TOKENS), all_heads - untouched)](
        qkv,
        positions,
        slots,
        keys,
        values,
        keys.view(-1).view(torch.float32) if short else None,
        values.view(-1).view(torch.float32) if short else None,
        rotary.cosines if rotary else None,
        rotary.sines if rotary else None,
        how.query_norm,
        how.key_norm if how.has_keys else how.query_norm,
        scales,
        tokens,
        FIRST=untouched,
        WIDTH=width,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        HALF_BLOCK=triton.next_power_of_2(dim // 2),
        DIM_BLOCK=triton.next_power_of_2(dim),
        BLOCK_SIZE=block_size,
        PIECE=(dim + short) * block_size,
        EPSILON=how.epsilon,
        AFTER_ROTARY=how.norms_after_rotary,
        VALUE_NORMS=how.value_norms,
        HAS_VALUES=how.has_values,
        TOKENS=TOKENS,
        num_warps=4,
        **early(qkv.device),
    )


@triton.jit
def _scale_all_heads(
    scales,
    qkv,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """What the norms of all queries, and of all keys, of a token multiply them by."""
    wait(EARLY)
    token, keys = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = QUERIES
    if keys == 1:
        size = KEYS
    column = tl.arange(0, BLOCK)
    numbers = tl.load(qkv + token * WIDTH + keys * QUERIES + column, column < size, 0.0).to(tl.float32)
    tl.store(scales + token * 2 + keys, tl.rsqrt(tl.sum(numbers * numbers) / size + EPSILON))


@triton.jit
def _norm_head(low, high, weight, scales, column, DIM: tl.constexpr, EPSILON: tl.constexpr):
    """The norm of both halves of heads; `scales` are known if norms run over all heads."""
    HALF: tl.constexpr = DIM // 2
    if scales is None:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + EPSILON)[:, None]
    else:
        scale = scales
    low = low * scale * tl.load(weight + column, column < HALF, 0.0)
    high = high * scale * tl.load(weight + HALF + column, column < HALF, 0.0)
    return low, high


@triton.jit
def _codes(numbers, top):
    """Integers from -127 to 127 for numbers up to `top`, to the nearest."""
    scaled = numbers * tl.where(top > 0, 127.0 / top, 0.0)
    return ((scaled + 12582912.0) - 12582912.0).to(tl.int32)  # 1.5 * 2^23, beside which there are only integers


@triton.jit(do_not_specialize=["tokens"])
def _place(
    qkv,
    positions,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    cosines,
    sines,
    query_norm,
    key_norm,
    scales,
    tokens,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    EPSILON: tl.constexpr,
    AFTER_ROTARY: tl.constexpr,
    VALUE_NORMS: tl.constexpr,
    HAS_VALUES: tl.constexpr,
    TOKENS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    wait(EARLY)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = FIRST + tl.program_id(1)
    there = token < tokens
    slot = tl.load(slots + token, there, -1)
    kept = (slot >= 0)[:, None]
    slot = tl.maximum(slot, 0)
    block, offset = (slot // BLOCK_SIZE).to(tl.int64)[:, None], (slot % BLOCK_SIZE)[:, None]
    source = qkv + token.to(tl.int64)[:, None] * WIDTH + head * DIM
    if head >= HEADS + KV_HEADS:
        every = tl.arange(0, DIM_BLOCK)[None, :]
        if not HAS_VALUES:
            source -= KV_HEADS * DIM
        value = tl.load(source + every, there[:, None] & (every < DIM), 0.0)
        if VALUE_NORMS:
            numbers = value.to(tl.float32)
            value = numbers * tl.rsqrt(tl.sum(numbers * numbers, 1) / DIM + EPSILON)[:, None]
        place = block * KV_HEADS + head - HEADS - KV_HEADS
        if value_scales is not None:
            value = value.to(tl.float32)
            top = tl.max(tl.abs(value), 1)[:, None]
            tl.store(value_scales + place * (PIECE // 4) + DIM * BLOCK_SIZE // 4 + offset, top / 127.0, kept)
            value = _codes(value, top)
        tl.store(values + place * PIECE + offset * DIM + every, value.to(values.dtype.element_ty), kept & (every < DIM))
    else:
        HALF: tl.constexpr = DIM // 2
        column = tl.arange(0, HALF_BLOCK)[None, :]
        whole = column < HALF
        inside = there[:, None] & whole
        low = tl.load(source + column, inside, 0.0).to(tl.float32)
        high = tl.load(source + HALF + column, inside, 0.0).to(tl.float32)
        scale = None
        weight = query_norm
        if query_norm is not None:
            if head >= HEADS:
                weight = key_norm
            if scales is not None:
                is_key = (head >= HEADS).to(tl.int32)
                weight += (head - is_key * HEADS) * DIM
                scale = tl.load(scales + token * 2 + is_key, there, 0.0)[:, None]
            if not AFTER_ROTARY:
                low, high = _norm_head(low, high, weight, scale, column, DIM, EPSILON)
        if cosines is not None:
            angle = tl.load(positions + token, there, 0).to(tl.int64)[:, None] * HALF + column
            cosine, sine = tl.load(cosines + angle, inside, 0.0), tl.load(sines + angle, inside, 0.0)
            # explicit fma: which of two products is fused into the sum is not the compiler's choice
            low, high = tl.fma(low, cosine, -(high * sine)), tl.fma(high, cosine, low * sine)
        if query_norm is not None and AFTER_ROTARY:
            low, high = _norm_head(low, high, weight, scale, column, DIM, EPSILON)
        if head < HEADS:
            tl.store(source + column, low.to(qkv.dtype.element_ty), inside)
            tl.store(source + HALF + column, high.to(qkv.dtype.element_ty), inside)
        else:
            place = block * KV_HEADS + head - HEADS
            if key_scales is not None:
                top = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))[:, None]
                tl.store(key_scales + place * (PIECE // 4) + DIM * BLOCK_SIZE // 4 + offset, top / 127.0, kept)
                low, high = _codes(low, top), _codes(high, top)
            to = keys + place * PIECE + column * BLOCK_SIZE + offset
            tl.store(to, low.to(keys.dtype.element_ty), kept & whole)
            tl.store(to + HALF * BLOCK_SIZE, high.to(keys.dtype.element_ty), kept & whole)
