"""Each kernel in Triton's interpreter against plain torch in float32. Run by test_interpreted.py."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mixed_requests import mixed
from plain_sampler import plain_token
from torch.nn.functional import gelu, layer_norm, linear, relu, rms_norm, silu

from services.engine.backends.cuda import products
from services.engine.backends.cuda.bits import AttentionBits, settle_attention
from services.engine.backends.cuda.inputs import send
from services.engine.backends.cuda.kernels import attention, product
from services.engine.backends.cuda.kernels.activation import activate, activate_times, soft_cap
from services.engine.backends.cuda.kernels.attention import Partials
from services.engine.backends.cuda.kernels.embedding import embed
from services.engine.backends.cuda.kernels.experts import choose, combine, sort
from services.engine.backends.cuda.kernels.heads import Heads, Rotary, place
from services.engine.backends.cuda.kernels.norm import Change, add_and_norm
from services.engine.backends.cuda.kernels.product import ANCHOR, MANY, PLAIN, Tile, multiply, steps
from services.engine.backends.cuda.plan import Planner, Tiles, plan
from services.engine.backends.cuda.products import Products
from services.engine.batch.flat_batch import FlatBatch, pack_batch
from services.engine.batch.kv_cache import KVCache, LayerShape, scale_numbers
from services.engine.batch.request_state import RequestState
from services.engine.families.decoder_weights import Linear, Table
from services.engine.sampling import batched_sampler, triton_rows, whole_rows
from services.engine.sampling import triton_draw as drawing
from services.engine.sampling.noise import keys
from services.engine.sampling.triton_draw import draw
from services.engine.sampling.truncation import DeviceTruncation, Truncation, weights
from services.engine.spec import Activation, AttentionSpec, DecoderSpec, ExpertsSpec
from services.requests import SamplingParams

TILES = Tiles(rows=8, keys=8, split=16, resident=1)
CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_embedding() -> None:
    ids, positions = torch.tensor([3, 0, 3], dtype=torch.int32), torch.tensor([0, 5, 2], dtype=torch.int32)
    vocabulary, learned = torch.randn(4, 24), torch.randn(6, 24)
    assert torch.equal(embed(ids, positions, Table(vocabulary, 0), None), vocabulary[ids])
    assert torch.equal(embed(ids, positions, Table(vocabulary, 0), None, 1.5), 1.5 * vocabulary[ids])
    whole = embed(ids, positions, Table(vocabulary, 0), Table(learned, 0))
    assert torch.equal(whole, vocabulary[ids] + learned[positions])
    partitions = [
        embed(ids, positions, Table(vocabulary[rows], rows.start), Table(learned[places], places.start))
        for rows, places in ((slice(0, 1), slice(0, 3)), (slice(1, 4), slice(3, 6)))
    ]
    assert torch.equal(partitions[0] + partitions[1], whole)
    assert torch.equal(partitions[0][0], learned[0])  # the other partition has the token, this one the position


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, parts and chunks, the last of which are not full."""
    for module, name, size in (
        (drawing, "PART", 128),
        (drawing, "BLOCK", 64),
        (drawing, "WIDTH", 16),
        (triton_rows, "CHUNKS_AT_ONCE", 4),
        (triton_rows, "CHUNK", 8),
        (triton_rows, "PART", 128),
        (triton_rows, "WIDTH", 16),
        (whole_rows, "CHUNK", 8),
    ):
        monkeypatch.setattr(module, name, size)


@pytest.mark.full  # a batch of all settings has such draws
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("listed", [128, pytest.param(16, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_draws_are_the_plain_ones(part: int, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From flat and sharp distributions, with equal scores, with impossible tokens, with fewer possible tokens than
    top_k; with lists that are long enough, and with some that are not."""
    monkeypatch.setattr(drawing, "LISTED", listed)
    kinds = list(itertools.product([1.0, 0.6, 3.0], [0, 1, 9, 150], [1.0, 0.95, 0.5, 0.0], [0.0, 0.05]))
    rows, vocab = [], 200
    for seed, (temperature, top_k, top_p, min_p) in enumerate(random.Random(0).sample(kinds, 30)[part::2]):
        sampling = SamplingParams(9, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed * 2**50)
        rows.append(RequestState(str(seed), [1] * (1 + seed), 1, sampling))
    logits = torch.randn(len(rows), vocab) * torch.tensor([0.1, 3.0, 10.0]).repeat(len(rows) // 3)[:, None]
    logits[::2] = logits[::2].round()
    logits[::5, ::3] = -torch.inf
    logits[1::4, 5:] = -torch.inf
    logits[3::20, :199] = -torch.inf
    expected = [plain_token(one, row, frozenset()) for one, row in zip(logits, rows, strict=True)]
    assert drawn(logits, rows) == expected


@pytest.mark.usefixtures("small")
def test_min_p_drops_what_the_plain_one_drops() -> None:
    """It drops most of the weight, so a kernel that ignores it draws other tokens."""
    logits = torch.linspace(0, 2, 200)[torch.randperm(200)].repeat(24, 1)
    free, limited = (
        [RequestState("r", [1], 1, SamplingParams(9, min_p=min_p, seed=seed)) for seed in range(24)]
        for min_p in (0.0, 0.6)
    )
    tokens, expected = (
        [plain_token(one, row, frozenset()) for one, row in zip(logits, rows, strict=True)] for rows in (free, limited)
    )
    assert sum(a != b for a, b in zip(tokens, expected, strict=True)) > 8
    assert drawn(logits, limited) == expected


def drawn(logits: torch.Tensor, rows: list[RequestState]) -> list[int]:
    """The kernels' tokens. Half of the rows lie in the second tensor."""
    limits = Truncation.from_params([row.sampling for row in rows], logits.shape[1])
    there = DeviceTruncation(*map(torch.from_numpy, limits))
    noise_keys = keys(
        (row.sampling.seed for row in rows), itertools.repeat(0, len(rows)), (len(r.token_ids) for r in rows)
    )
    return drawn_from(logits, there, torch.from_numpy(noise_keys))


def drawn_from(logits: torch.Tensor, limits: DeviceTruncation, noise_keys: torch.Tensor) -> list[int]:
    half = len(logits) // 2
    order = torch.randperm(len(logits))
    shuffled = logits[order]
    maxima = triton_rows.maxima(shuffled)
    tokens: list[int] = draw((shuffled[:half], shuffled[half:]), maxima, order.argsort(), limits, noise_keys).tolist()
    return tokens


def test_what_cannot_be_drawn_from_gives_some_token() -> None:
    """The token's log probability is read before the sampler knows that it is invalid."""
    logits = torch.stack([torch.full((50,), -torch.inf), torch.full((50,), torch.nan), torch.zeros(50)])
    logits[2, 7], logits[2, 9] = torch.nan, torch.inf
    one, zero = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    for top_k in (0, 3):
        tokens = drawn_from(logits, DeviceTruncation(one, -one, zero + top_k, one.double() / 2), zero)
        assert all(0 <= token < 50 for token in tokens)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("vocab", [1, 8, 203])
def test_the_best_of_rows(vocab: int) -> None:
    """Their maxima and lowest tokens are torch's; a row with NaN has no finite one."""
    logits = torch.randn(7, vocab).round()
    logits[3], logits[4, 0], logits[5, -1] = -torch.inf, torch.nan, torch.inf
    tokens, tops = torch.empty(7, dtype=torch.int64), torch.empty(7)
    triton_rows.best(logits, triton_rows.maxima(logits), tokens, tops)
    sound = [0, 1, 2, 3, 5, 6]
    expected = logits.max(dim=1)
    assert torch.equal(tops[sound], expected.values[sound])
    assert tokens[sound].tolist() == [int((row == row.max()).nonzero()[0]) for row in logits[sound]]
    assert tops[4] == torch.inf
    assert 0 <= tokens[4] < vocab


@pytest.mark.usefixtures("small")
def test_sums_of_weights_are_those_of_torch() -> None:
    logits = torch.randn(5, 203) * 10
    tops = logits.amax(dim=1)
    assert torch.equal(triton_rows.weigh(logits, tops), weights(logits - tops[:, None]).sum(dim=1))


@pytest.mark.usefixtures("small")
def test_a_batch_of_all_settings_is_sampled_as_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, and log probabilities to the last bit."""
    logits = torch.randn(34, 300) * 3
    expected = batched_sampler.sample(logits, mixed(34, 300))
    monkeypatch.setattr(whole_rows, "kernels", lambda raw: triton_rows)
    assert batched_sampler.sample(logits, mixed(34, 300)) == expected


@pytest.mark.parametrize("mean", [True, False])
def test_norm(mean: bool) -> None:
    x, change, weight = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    bias = torch.randn(24) if mean else None
    plain = layer_norm if mean else rms_norm

    def expected(x: torch.Tensor) -> torch.Tensor:
        return plain(x, (24,), weight, bias, 1e-5) if mean else plain(x, (24,), weight, 1e-5)

    norm = Linear(weight, bias)
    torch.testing.assert_close(add_and_norm(x, None, norm, 1e-5, mean, torch.float32), expected(x), **CLOSE)
    before = x.clone()
    rows = torch.tensor([4, 1], dtype=torch.int32)
    some = add_and_norm(x, Change(change), norm, 1e-5, mean, torch.float32, rows)
    assert torch.equal(x, before)
    whole = add_and_norm(x, Change(change), norm, 1e-5, mean, torch.float32)
    assert torch.equal(x, before + change)
    torch.testing.assert_close(whole, expected(before + change), **CLOSE)
    assert torch.equal(some, whole[rows])
    x = before.clone()
    summed = add_and_norm(x, Change(change, norm, 0.7), None, 1e-5, mean, torch.float32)
    torch.testing.assert_close(x, (before + expected(change)) * 0.7, **CLOSE)
    assert torch.equal(summed, x)


def mlp(activation: Activation, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> DecoderSpec:
    fields = {"activation": activation, "gated": gated, "swiglu_alpha": alpha, "swiglu_limit": limit}
    return DecoderSpec("llama", 1, 8, 1, 1, 8, 8, 8, 1e-5, **fields)


def test_activations() -> None:
    up = torch.randn(3, 2 * 1100) * 20
    gates, others = up.chunk(2, dim=1)
    plain = {
        Activation.SILU: silu,
        Activation.GELU: lambda x: gelu(x, approximate="tanh"),
        Activation.RELU_SQUARED: lambda x: relu(x).square(),
    }
    for activation, function in plain.items():
        torch.testing.assert_close(activate(up, mlp(activation, False)), function(up), **CLOSE)
        torch.testing.assert_close(activate(up, mlp(activation, True)), function(gates) * others, **CLOSE)
        torch.testing.assert_close(activate_times(gates, others, activation), function(gates) * others, **CLOSE)
    low, middle = gates.clamp(max=7.0), others.clamp(-7.0, 7.0)
    found = activate(up, mlp(Activation.SILU, True, 1.7, 7.0))
    torch.testing.assert_close(found, low * torch.sigmoid(1.7 * low) * (middle + 1), **CLOSE)
    up[0, 0] = torch.nan
    assert activate(up, mlp(Activation.SILU, True, 1.7, 7.0))[0, 0].isnan()


def test_soft_cap_of_logits() -> None:
    logits = torch.randn(3, 1100) * 40
    capped = logits.clone()
    soft_cap(capped, 30.0)
    torch.testing.assert_close(capped, 30.0 * torch.tanh(logits / 30.0), **CLOSE)


def test_products_have_the_same_bits_in_every_tile() -> None:
    x, linear_ = torch.randn(70, 72), Linear(torch.randn(100, 72), torch.randn(100))
    whole = multiply(x, linear_, torch.float32, PLAIN)
    torch.testing.assert_close(whole, linear(x, linear_.weight, linear_.bias), rtol=1e-4, atol=1e-4)
    for tile in {ANCHOR, *(tile for _, _, tile in product.TILES)}:
        for rows in (slice(0, 1), slice(3, 9), slice(64, 70)):
            found = multiply(x[rows].contiguous(), linear_, torch.float32, tile)
            assert torch.equal(found, whole[rows]), tile
    assert multiply(x[:0], linear_, torch.float32, PLAIN).shape == (0, 100)


def test_every_number_of_rows_has_one_tile() -> None:
    for outputs in (64, 4096, 16_384, 16_385, 128_256):
        for dtype in (torch.bfloat16, torch.float32):
            found = steps(outputs, dtype)
            assert [step.least for step in found] == [1, *(step.most + 1 for step in found[:-1])]
            assert found[-1].most == MANY
    assert steps(4096, torch.bfloat16) != steps(20_000, torch.bfloat16)


SMALL = Tile(rows=16, outputs=32, depth=16, warps=4, stages=2, swapped=True)
OTHER = Tile(rows=8, outputs=16, depth=8, warps=4, stages=2)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, slabs and whole products of a few rows, and torch's product in order, in the library's place."""
    monkeypatch.setattr(product, "TILES", ((4, 0, SMALL), (product.MANY, 0, OTHER)))
    monkeypatch.setattr(products, "SLABS", (16, 8))
    monkeypatch.setattr(products, "WHOLE", (5,))
    monkeypatch.setattr(products, "library_product", in_order)


def in_order(x: torch.Tensor, linear: Linear, out: torch.Tensor) -> None:
    total = torch.zeros(len(x), len(linear.numbers))
    for left, right in zip(x.t().float(), linear.numbers.t().float(), strict=True):
        total += torch.outer(left, right)
    out.copy_(total)


@pytest.mark.usefixtures("few_rows")
def test_what_has_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A library that splits sums for some numbers of rows, and a tile that does. Rows are alike in any batch."""
    x, one = torch.randn(29, 40).bfloat16(), Linear(torch.randn(48, 40).bfloat16())
    asked: list[int] = []
    result = torch.float32  # the interpreter rounds to bfloat16 in another way than torch

    def library(x: torch.Tensor, linear: Linear, out: torch.Tensor) -> None:
        asked.append(len(x))
        in_order(x, linear, out)
        if len(x) == 16:
            out += 0.01

    def other(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = multiply(*args, **kwargs)
        return found + 0.01 if args[3] == SMALL else found

    monkeypatch.setattr(products, "library_product", library)
    monkeypatch.setattr(products, "multiply", other)
    multiplies = Products()
    hashed = multiplies.settle(one, x, result)
    assert "differs at 16 rows" in caplog.text
    assert str(SMALL) in caplog.text
    asked.clear()
    whole = multiplies(x, one, result)
    assert asked == [8, 8, 8, 5]
    assert torch.equal(whole, multiply(x, one, result, ANCHOR))
    for rows in (1, 4, 5, 6, 8, 13, 16, 17, 28):
        assert torch.equal(multiplies(x[:rows], one, result), whole[:rows])
    assert Products().settle(one, x, result) == hashed
    assert Products().settle(one, x.flip(0), result) != hashed


@pytest.mark.usefixtures("few_rows")
def test_the_library_has_no_biases_and_no_odd_shapes() -> None:
    x = torch.randn(16, 40).bfloat16()
    for one in (Linear(torch.randn(48, 40).bfloat16(), torch.randn(48)), Linear(torch.randn(50, 40).bfloat16())):
        multiplies = Products()
        multiplies.settle(one, x, torch.bfloat16)
        assert not any(multiplies._library.values())


def plain_choice(logits: torch.Tensor, correction: torch.Tensor | None, spec: ExpertsSpec) -> list[torch.Tensor]:
    """Experts and shares [tokens, chosen]."""
    shares = torch.sigmoid(logits) if spec.sigmoid else logits.softmax(-1)
    scores = logits if correction is None else shares + correction
    chosen = torch.sort(scores, descending=True, stable=True).indices[:, : spec.chosen]
    shares = shares.gather(1, chosen)
    if spec.normalised:
        shares = shares / shares.sum(1, keepdim=True)
    return [chosen, shares * spec.scale]


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_experts_are_chosen_as_by_torch(sigmoid: bool, normalised: bool, corrected: bool) -> None:
    """The router has one more output; some logits are equal."""
    spec = ExpertsSpec(11, 3, 8, normalised, sigmoid=sigmoid, scale=1.5)
    logits, correction = torch.randn(9, 12), torch.randn(11) if corrected else None
    if not corrected:
        logits[::2] = logits[::2].round()
    chosen, shares = choose(logits, correction, spec)
    expected, expected_shares = plain_choice(logits[:, :11], correction, spec)
    assert torch.equal(chosen.long(), expected)
    torch.testing.assert_close(shares, expected_shares, **CLOSE)


def test_undefined_logits_choose_some_experts() -> None:
    logits = torch.randn(4, 11)
    logits[1, 5], logits[2, 6] = torch.nan, torch.inf
    chosen, shares = choose(logits, None, ExpertsSpec(11, 3, 8, True))
    assert chosen[1].tolist() == [0, 1, 2]
    assert shares[1].isnan().all()
    assert chosen[2, 0] == 6
    assert shares[[0, 3]].isfinite().all()


def test_outputs_of_experts_are_added_best_first() -> None:
    outputs, shares, shared, logits = torch.randn(15, 40), torch.randn(5, 3), torch.randn(5, 40), torch.randn(5, 12)
    expected = torch.einsum("tk,tkh->th", shares, outputs.view(5, 3, 40))
    torch.testing.assert_close(combine(outputs, shares), expected, **CLOSE)
    torch.testing.assert_close(combine(outputs, shares, shared), expected + shared, **CLOSE)
    gates = torch.sigmoid(logits[:, 11:])
    torch.testing.assert_close(combine(outputs, shares, shared, logits[:, 11]), expected + gates * shared, **CLOSE)


@pytest.mark.parametrize("tokens", [1, 9, 700])
def test_places_are_sorted_by_expert(tokens: int) -> None:
    """More than one block of them, too, and an expert that no token goes to."""
    chosen = torch.stack([torch.randperm(7)[:3] for _ in range(tokens)]).int()
    chosen[chosen == 4] = 7
    routes = sort(chosen, 8)
    assert torch.equal(routes.places.long(), torch.sort(chosen.flatten(), stable=True).indices)
    assert routes.ends.tolist() == [int((chosen <= expert).sum()) for expert in range(8)]


def test_products_of_experts_have_the_same_bits_in_every_tile() -> None:
    """As those of each expert alone: of rows for tokens and of rows for places. Each expert but the last has more than
    one tile, or none."""
    tokens, experts = 11, 4
    chosen = torch.stack([torch.randperm(3)[:2] for _ in range(tokens)]).int()
    chosen[chosen == 2], chosen[0, 0] = 1, 3
    routes = sort(chosen, experts)
    linear_ = Linear(torch.randn(experts, 20, 24), torch.randn(experts, 20))
    assert linear_.bias is not None
    own = [Linear(linear_.numbers[i].contiguous(), linear_.bias[i].contiguous()) for i in range(experts)]
    for rows in (torch.randn(tokens, 24), torch.randn(2 * tokens, 24)):
        of_all = rows.repeat_interleave(2 * tokens // len(rows), 0)
        each = [multiply(of_all, one, torch.float32, PLAIN) for one in own]
        expected = torch.stack([each[expert][i] for i, expert in enumerate(chosen.flatten().tolist())])
        for tile in (PLAIN, SMALL, OTHER):
            assert torch.equal(multiply(rows, linear_, torch.float32, tile, routes=routes), expected), tile
    plain = torch.einsum("pi,poi->po", of_all, linear_.numbers[chosen.flatten().long()])
    found = multiply(rows, Linear(linear_.numbers), torch.float32, PLAIN, routes=routes)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("few_rows")
def test_a_tile_of_experts_that_has_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x, one = torch.randn(29, 16).bfloat16(), Linear(torch.randn(3, 16, 16).bfloat16())
    tiles: list[Tile] = []

    def other(*args: Any, **kwargs: Any) -> torch.Tensor:
        tiles.append(args[3])
        return multiply(*args, **kwargs) + (0.01 if args[3] == SMALL else 0.0)

    monkeypatch.setattr(products, "multiply", other)
    multiplies = Products()
    multiplies.settle_experts(one, x, torch.float32)
    for tokens in (2, 29):  # so few that the tile is the refused one, and more
        chosen = (torch.arange(tokens) % 3).int()[:, None]
        multiplies.of_experts(x[:tokens], one, sort(chosen, 3), torch.float32)
    assert tiles[-2:] == [ANCHOR, OTHER]


def plain_heads(parts: list[torch.Tensor], positions: torch.Tensor, how: Heads) -> list[torch.Tensor]:
    """Queries, keys and values [tokens, heads, dim] by torch alone."""
    queries, keys, values = parts
    dim = queries.shape[2]
    if how.value_norms:
        values = rms_norm(values, (dim,), None, how.epsilon)
    changed = []
    for part, weight in ((queries, how.query_norm), (keys, how.key_norm)):
        steps = ["rotate", "norm"] if how.norms_after_rotary else ["norm", "rotate"]
        for step in steps:
            if step == "norm" and weight is not None:
                rows = part.flatten(1) if how.norms_all_heads else part
                part = rms_norm(rows, rows.shape[-1:], weight, how.epsilon).reshape(part.shape)
            if step == "rotate" and how.rotary:
                cosines, sines = how.rotary.cosines[positions][:, None], how.rotary.sines[positions][:, None]
                low, high = part.chunk(2, dim=-1)
                part = torch.cat([low * cosines - high * sines, high * cosines + low * sines], dim=-1)
        changed.append(part)
    return [*changed, values]


SIZES = [(24, 5), pytest.param(16, 4, marks=pytest.mark.full)]  # of a head and of a block


@pytest.mark.parametrize(("dim", "block_size"), SIZES)
@pytest.mark.parametrize(
    ("turned", "more"),
    [
        (True, {}),
        (True, None),
        (False, None),
        (True, {"norms_all_heads": True}),
        (True, {"norms_after_rotary": True}),
        (True, {"value_norms": True}),
        (True, {"value_norms": True, "has_values": False}),
        (True, {"has_keys": False, "has_values": False}),
    ],
)
def test_heads(dim: int, block_size: int, turned: bool, more: dict[str, bool] | None) -> None:
    """With norms of queries and keys unless `more` is None."""
    tokens, heads, kv_heads, blocks = 19, 6, 2, 9
    many = heads if more and more.get("norms_all_heads") else 1
    how = Heads(
        heads,
        1e-6,
        Rotary(torch.randn(50, dim // 2), torch.randn(50, dim // 2)) if turned else None,
        None if more is None else torch.randn(many * dim),
        None if more is None else torch.randn(kv_heads * dim if many > 1 else dim),
        **(more or {}),
    )
    kept_parts = 1 + how.has_keys + how.has_values
    qkv = torch.randn(tokens, (heads + (kept_parts - 1) * kv_heads) * dim)
    positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
    slots = torch.randperm(blocks * block_size)[:tokens].int()
    slots[7] = -1
    cache = KVCache([LayerShape(kv_heads, dim, dim)], blocks, block_size, torch.float32, CPU)
    expected = KVCache([LayerShape(kv_heads, dim, dim)], blocks, block_size, torch.float32, CPU)
    parts = list(qkv.clone().view(tokens, -1, dim).split([heads, kv_heads, kv_heads][:kept_parts], dim=1))
    queries, keys, values = plain_heads((parts + parts[-1:] * 2)[:3], positions, how)
    kept = slots >= 0
    if how.has_keys:
        expected.write(0, slots[kept].long(), keys[kept], values[kept])
    place(qkv, positions, slots, cache.keys[0], cache.values[0], how)
    torch.testing.assert_close(qkv.view(tokens, -1, dim)[:, :heads], queries, **CLOSE)
    torch.testing.assert_close(cache.keys[0], expected.keys[0], **CLOSE)
    torch.testing.assert_close(cache.values[0], expected.values[0], **CLOSE)


def in_eight_bits(numbers: torch.Tensor, along: int) -> torch.Tensor:
    """What the cache has [blocks, heads, ...] of these keys [..., dim, block_size] or values [..., block_size, dim],
    each with a scale; `numbers` become those that are kept."""
    scales = numbers.abs().amax(along, keepdim=True) / 127
    codes = torch.where(scales > 0, numbers / scales, 0).round()
    numbers.copy_(codes * scales)
    pieces = torch.cat([codes.flatten(2).to(torch.int8), scales.flatten(2).view(torch.int8)], dim=2)
    shape = list(numbers.shape)
    shape[along] += scale_numbers(torch.int8)
    return pieces.view(shape)


@pytest.mark.parametrize(("dim", "block_size"), SIZES)
def test_heads_in_eight_bits(dim: int, block_size: int) -> None:
    tokens, heads, kv_heads, blocks = 19, 6, 2, 9
    how = Heads(heads, 1e-6, Rotary(torch.randn(50, dim // 2), torch.randn(50, dim // 2)))
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    qkv[3] = 0
    positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
    slots = torch.randperm(blocks * block_size)[:tokens].int()
    shape = [LayerShape(kv_heads, dim, dim)]
    exact, short = (KVCache(shape, blocks, block_size, dtype, CPU) for dtype in (torch.float32, torch.int8))
    for cache in (exact, short):
        place(qkv.clone(), positions, slots, cache.keys[0], cache.values[0], how)
    for numbers, found, along in ((exact.keys[0], short.keys[0], 2), (exact.values[0], short.values[0], 3)):
        expected = in_eight_bits(numbers.clone(), along)
        assert found.shape == expected.shape
        pieces, others = found.flatten(2), expected.flatten(2)
        scales, rounded = (each[..., dim * block_size :].contiguous().view(torch.float32) for each in (pieces, others))
        torch.testing.assert_close(scales, rounded)
        codes = slice(dim * block_size)
        assert (
            (pieces[..., codes].int() - others[..., codes].int()).abs() <= 1
        ).all()  # a tie may be rounded otherwise
        assert torch.equal(pieces[..., codes] == 0, others[..., codes] == 0)


class Scene:
    """Requests of random lengths over scattered blocks whose keys and values are there."""

    def __init__(
        self, lengths: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, block_size: int, **more: Any
    ) -> None:
        """`lengths`: of each request, the tokens computed before and those of this iteration; `more` of its
        AttentionSpec."""
        rng = random.Random(1)
        self.spec = AttentionSpec(heads, kv_heads, dim, dim**-0.5, **more)
        self.sinks = torch.randn(heads) if self.spec.sinks else None
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        blocks = list(range(sum(-(-sum(both) // block_size) for both in lengths)))
        rng.shuffle(blocks)
        self.shape = [LayerShape(kv_heads, dim, dim)]
        self.cache = self.kept = KVCache(self.shape, len(blocks), block_size, torch.float32, CPU)
        self.cache.keys[0].normal_()
        self.cache.values[0].normal_()
        self.cache.values[0][-1] = torch.nan  # the padding block belongs to no request
        self.rows = []
        for context, count in lengths:
            row = RequestState("r", [1] * (context + count), 1, SamplingParams(1), context)
            row.blocks.extend(blocks.pop() for _ in range(-(-(context + count) // block_size)))
            self.rows.append((row, count))
        self.queries = [torch.randn(count, heads, dim) for _, count in lengths]

    def shorten(self) -> None:
        """Keep keys and values in eight bits from now on, and what they stand for, too."""
        short = KVCache(self.shape, self.cache.num_blocks, self.cache.block_size, torch.int8, CPU)
        for numbers, store, along in zip(
            (self.cache.keys[0], self.cache.values[0]), (short.keys[0], short.values[0]), (2, 3), strict=True
        ):
            store[:-1] = in_eight_bits(numbers[:-1], along)
        self.kept = short

    def attend(self, which: list[int], tiles: Tiles, programs: int, partial_rows: int) -> list[torch.Tensor]:
        """The outputs of these requests, as one iteration."""
        batch = pack_batch([self.rows[i] for i in which], self.cache.block_size)
        return self.attend_batch(batch, torch.cat([self.queries[i] for i in which]), tiles, programs, partial_rows)

    def attend_batch(
        self, batch: FlatBatch, queries: torch.Tensor, tiles: Tiles, programs: int, partial_rows: int
    ) -> list[torch.Tensor]:
        items = plan(batch, self.spec, tiles, programs, partial_rows)
        qkv = torch.full((len(queries), (self.heads + 2 * self.kv_heads) * self.dim), torch.nan)
        qkv[:, : self.heads * self.dim] = queries.flatten(1)
        partials = Partials.make(partial_rows, self.kv_heads, self.dim, CPU)
        (work,) = send(batch, [items], CPU).work
        keys, values = self.kept.keys[0], self.kept.values[0]
        out = attention.attend(qkv, keys, values, work, partials, self.spec, tiles, programs, self.sinks)
        assert not partials.arrived.any()
        assert not partials.taken.any()
        return list(out.view(-1, self.heads, self.dim).split(np.diff(batch.starts).tolist()))

    def plain(self, i: int) -> torch.Tensor:
        """Request i by torch alone."""
        (row, count), group = self.rows[i], self.heads // self.kv_heads
        keys, values = self.cache.read(0, torch.tensor([row.blocks.tolist()]))
        keys, values = (t[0].repeat_interleave(group, 0) for t in (keys, values))
        scores = torch.einsum("thd,hsd->hts", self.queries[i], keys) * self.dim**-0.5
        if cap := self.spec.soft_cap:
            scores = cap * torch.tanh(scores / cap)
        at = torch.arange(keys.shape[1])
        position = torch.arange(row.num_computed_tokens, row.num_computed_tokens + count)[:, None]
        seen = (at <= position) & (at > position - (self.spec.window or 1000))
        scores = scores.masked_fill(~seen, -torch.inf)
        sinks = torch.full((self.heads,), -torch.inf) if self.sinks is None else self.sinks
        shares = torch.cat([scores, sinks[:, None, None].expand(-1, count, 1)], 2).softmax(-1)[..., :-1]
        return torch.einsum("hts,hsd->thd", shares, values)


LENGTHS = [(0, 1), (0, 19), (39, 1), (15, 1), (17, 5), (16, 1)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [
        (6, 2, 24, 5),
        *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in [(4, 2, 16, 4), (3, 3, 16, 16), (4, 1, 16, 32)]),
    ],
)
def test_attention_is_the_plain_one(heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    scene = Scene(LENGTHS, heads, kv_heads, dim, block_size)
    outputs = scene.attend(list(range(len(LENGTHS))), TILES, programs=8, partial_rows=64)
    for i, output in enumerate(outputs):
        torch.testing.assert_close(output, scene.plain(i), rtol=1e-4, atol=1e-5)


MORE = ({"window": 5}, {"window": 17, "sinks": True}, {"soft_cap": 0.7, "sinks": True})


@pytest.mark.parametrize("more", MORE)
def test_other_attention_is_the_plain_one(more: dict[str, Any]) -> None:
    scene = Scene(LENGTHS, 4, 2, 16, 4, **more)
    for rows in (0, 64):
        outputs = scene.attend(list(range(len(LENGTHS))), TILES, programs=8, partial_rows=rows)
        for i, output in enumerate(outputs):
            torch.testing.assert_close(output, scene.plain(i), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dim", "block_size"), SIZES)
def test_attention_in_eight_bits_is_the_plain_one(dim: int, block_size: int) -> None:
    scene = Scene(LENGTHS, 4, 2, dim, block_size)
    scene.shorten()
    outputs = scene.attend(list(range(len(LENGTHS))), TILES, programs=8, partial_rows=64)
    for i, output in enumerate(outputs):
        torch.testing.assert_close(output, scene.plain(i), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("more", "short"), [(MORE[1], False), ({}, True)])
def test_bits_of_attention_depend_on_the_request_alone(more: dict[str, Any], short: bool) -> None:
    """Alone, in a batch, with its splits in one program or several, in chunks, one token at a time, in wide tiles."""
    scene = Scene(LENGTHS, 4, 2, 16, 4, **more)
    if short:
        scene.shorten()
    everyone = list(range(len(LENGTHS)))
    together = scene.attend(everyone, TILES, programs=32, partial_rows=256)
    again = scene.attend(everyone[::-1], TILES, programs=8, partial_rows=0)
    wide = scene.attend(everyone, replace(TILES, rows=32), programs=8, partial_rows=16)
    assert all(torch.equal(a, b) for a, b in zip(together, again[::-1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(together, wide, strict=True))
    for i in everyone:
        assert torch.equal(scene.attend([i], TILES, programs=8, partial_rows=256)[0], together[i])
    row, count = scene.rows[1]
    for step in (2, 7):
        pieces = []
        for begin in range(0, count, step):
            end = min(begin + step, count)
            part = (replace(row, num_computed_tokens=begin), end - begin)
            batch = pack_batch([part], scene.cache.block_size)
            pieces += scene.attend_batch(batch, scene.queries[1][begin:end], TILES, 8, 256)
        assert torch.equal(torch.cat(pieces), together[1])


def test_what_lies_behind_a_request_is_not_read() -> None:
    scene = Scene([(5, 1)], 4, 2, 16, 4)
    expected = scene.plain(0)
    last = scene.rows[0][0].blocks[-1]
    scene.cache.keys[0][last, :, :, 2:] = torch.nan
    scene.cache.values[0][last, :, 2:] = torch.nan
    torch.testing.assert_close(scene.attend([0], TILES, 2, 16)[0], expected, **CLOSE)


def test_an_attention_whose_tiles_differ_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of equal tiles are those of wide ones; a planner whose narrow tiles differ plans none."""
    part = AttentionSpec(4, 2, 16, 0.25)
    tiles = Tiles(rows=32, keys=8, split=16)
    bits, planner = AttentionBits(part, tiles, torch.float32, 8, CPU), Planner(part, tiles, 8, 64)
    hashed = settle_attention(bits, planner)
    assert planner.increments == tiles.narrow
    run = AttentionBits.run

    def other(self: AttentionBits, tiles: Tiles, partial_rows: int) -> torch.Tensor:
        return run(self, tiles, partial_rows) + (0.01 if tiles.rows == 16 else 0.0)

    monkeypatch.setattr(AttentionBits, "run", other)
    assert settle_attention(bits, planner) == hashed
    assert planner.increments == tiles
    monkeypatch.setattr(AttentionBits, "run", lambda self, tiles, rows: run(self, tiles, rows) + 0.01 * (rows > 0))
    with pytest.raises(RuntimeError, match="depend on how splits are merged"):
        settle_attention(bits, planner)
