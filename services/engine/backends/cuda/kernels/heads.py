"""From qkv to attention: head norms and rotary embeddings of queries and keys, and the write to the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.engine.backends.cuda.kernels.launch import early, wait

TOKENS = 16  # of one program: a block of the default size, whose keys are then written together


@dataclass(frozen=True, slots=True)
class Rotary:
    """Tables [positions, head_dim / 2], float32."""

    cosines: torch.Tensor
    sines: torch.Tensor


def place(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rotary: Rotary | None,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    epsilon: float,
) -> None:
    """Normalise and rotate the queries of qkv [tokens, (heads + 2 * kv_heads) * dim] in place; write its keys, likewise
    changed, and its values to `slots` [tokens] of the cache. Tokens with a negative slot are not written."""
    tokens = len(qkv)
    kv_heads, dim, block_size = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    untouched = heads if rotary is None and query_norm is None else 0
    _place[(triton.cdiv(tokens, TOKENS), heads + 2 * kv_heads - untouched)](
        qkv,
        positions,
        slots,
        keys,
        values,
        None if rotary is None else rotary.cosines,
        None if rotary is None else rotary.sines,
        query_norm,
        key_norm,
        tokens,
        FIRST=untouched,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        HALF_BLOCK=triton.next_power_of_2(dim // 2),
        DIM_BLOCK=triton.next_power_of_2(dim),
        BLOCK_SIZE=block_size,
        EPSILON=epsilon,
        TOKENS=TOKENS,
        num_warps=4,
        **early(qkv.device),
    )


@triton.jit(do_not_specialize=["tokens"])
def _place(
    qkv,
    positions,
    slots,
    keys,
    values,
    cosines,
    sines,
    query_norm,
    key_norm,
    tokens,
    FIRST: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EPSILON: tl.constexpr,
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
    source = qkv + token.to(tl.int64)[:, None] * ((HEADS + 2 * KV_HEADS) * DIM) + head * DIM
    if head >= HEADS + KV_HEADS:
        every = tl.arange(0, DIM_BLOCK)[None, :]
        value = tl.load(source + every, there[:, None] & (every < DIM), 0.0)
        value_row = (block * KV_HEADS + head - HEADS - KV_HEADS) * BLOCK_SIZE + offset
        tl.store(values + value_row * DIM + every, value.to(values.dtype.element_ty), kept & (every < DIM))
    else:
        HALF: tl.constexpr = DIM // 2
        column = tl.arange(0, HALF_BLOCK)[None, :]
        whole = column < HALF
        inside = there[:, None] & whole
        low = tl.load(source + column, inside, 0.0).to(tl.float32)
        high = tl.load(source + HALF + column, inside, 0.0).to(tl.float32)
        if query_norm is not None:
            weight = query_norm
            if head >= HEADS:
                weight = key_norm
            scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + EPSILON)[:, None]
            low = low * scale * tl.load(weight + column, whole, 0.0)
            high = high * scale * tl.load(weight + HALF + column, whole, 0.0)
        if cosines is not None:
            angle = tl.load(positions + token, there, 0).to(tl.int64)[:, None] * HALF + column
            cosine, sine = tl.load(cosines + angle, inside, 0.0), tl.load(sines + angle, inside, 0.0)
            # explicit fma: which of two products is fused into the sum is not the compiler's choice
            low, high = tl.fma(low, cosine, -(high * sine)), tl.fma(high, cosine, low * sine)
        if head < HEADS:
            tl.store(source + column, low.to(qkv.dtype.element_ty), inside)
            tl.store(source + HALF + column, high.to(qkv.dtype.element_ty), inside)
        else:
            key_row = (block * KV_HEADS + head - HEADS) * DIM + column
            to = keys + key_row * BLOCK_SIZE + offset
            tl.store(to, low.to(keys.dtype.element_ty), kept & whole)
            tl.store(to + HALF * BLOCK_SIZE, high.to(keys.dtype.element_ty), kept & whole)
