"""Floors compared with cases computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import FAMILIES
from transformers import AutoConfig

from load.bench.floor import LayerAttention, Matrix, ModelShape, Operation, Span, floor, operations
from load.bench.rates import MachineRates, MatrixRate, _at_least

LAYER = LayerAttention(heads=4, kv_heads=2, head_dim=5, kv_bytes=5 * 4)
SHAPE = ModelShape(
    projections=(Matrix(10, 20, 2), Matrix(20, 10, 2)),
    output=Matrix(10, 100, 1),
    weight_bytes=2,
    attention=(LAYER, LAYER),
)
RATES = MachineRates(
    1000.0, (MatrixRate(1, 1000.0, "linear"), MatrixRate(3, 3000.0, "mm"), MatrixRate(9, 2500.0, "mm"))
)


def test_an_increment_iteration() -> None:
    assert list(operations(SHAPE, [Span(7, 1)])) == [
        Operation("projections", 10 * 20 * 2 * 2, 2 * 10 * 20 * 2),
        Operation("projections", 20 * 10 * 2 * 2, 2 * 20 * 10 * 2),
        Operation("output", 10 * 100 * 2, 2 * 10 * 100),
        Operation("attention", 2 * 8 * (2 * 2 * 5) * 4, 2 * 8 * 4 * (4 * 5)),
    ]


def test_a_mixed_iteration_multiplies_all_tokens_at_once_and_samples_for_some() -> None:
    by_hand = list(operations(SHAPE, [Span(0, 3, samples=False), Span(4, 2)]))
    assert [operation.kind for operation in by_hand] == ["projections"] * 2 + ["output"] + ["attention"] * 2
    assert by_hand[0].flops == 2 * 5 * 10 * 20 * 2
    # the first request's queries see 1, 2 and 3 keys, the second's 5 and 6
    assert [operation.flops for operation in by_hand[3:]] == [2 * keys * 4 * (4 * 5) for keys in (6, 11)]
    assert [operation.bytes for operation in by_hand[3:]] == [2 * keys * (2 * 2 * 5) * 4 for keys in (3, 6)]


@pytest.mark.parametrize(
    ("span", "keys", "positions"),
    [(Span(7, 1), 3, 3), (Span(0, 5), 1 + 2 + 3 + 3 + 3, 5), (Span(4, 2), 3 + 3, 4), (Span(1, 3), 2 + 3 + 3, 4)],
)
def test_layers_with_a_window_read_no_key_before_it(span: Span, keys: int, positions: int) -> None:
    shapes = replace(SHAPE, attention=(replace(LAYER, window=3), LAYER)), SHAPE
    windowed, full = (list(operations(shape, [span]))[-1] for shape in shapes)
    assert windowed.flops == full.flops / 2 + keys * 4 * (4 * 5)
    assert windowed.bytes == full.bytes / 2 + positions * (2 * 2 * 5) * 4


def test_nothing_is_multiplied_by_the_output_matrix_if_no_request_samples() -> None:
    assert "output" not in {operation.kind for operation in operations(SHAPE, [Span(0, 3, samples=False)])}


def test_the_floor_takes_the_larger_of_bytes_and_operations() -> None:
    # one row: 800 bytes are 0.8 s, 800 operations 0.27 s at 3,000 a second, the best rate of any row count; the
    # output's 2,000 bytes 2 s; attention's 1,280 bytes are 1.28 s
    lone = floor(SHAPE, RATES, [[Span(7, 1)]])
    assert lone.by_kind == pytest.approx({"projections": 1.6, "output": 2.0, "attention": 1.28})
    assert lone.seconds == pytest.approx(4.88)
    assert lone.moving == pytest.approx((800 + 800 + 2000 + 1280) / 1000)
    # six rows: 4,800 operations at 3,000
    prompt = floor(SHAPE, RATES, [[Span(0, 6)]])
    assert prompt.by_kind["projections"] == pytest.approx(2 * 4800 / 3000)
    both = floor(SHAPE, RATES, [[Span(7, 1)], [Span(0, 6)]])
    assert both.seconds == pytest.approx(lone.seconds + prompt.seconds)


@pytest.mark.parametrize(
    ("family", "projections", "kv_heads"),
    [
        ("llama", {(64, 64, 4), (64, 32, 4), (64, 128, 4), (128, 64, 2)}, 2),
        ("gpt2", {(64, 192, 2), (64, 64, 2), (64, 256, 2), (256, 64, 2)}, 4),
    ],
)
def test_the_shape_of_a_family(family: str, projections: set[tuple[int, int, int]], kv_heads: int) -> None:
    config = AutoConfig.for_model(family, vocab_size=320, **FAMILIES[family])
    shape = ModelShape.of(config, 2, torch.float32)
    assert {(m.inputs, m.outputs, m.count) for m in shape.projections} == projections
    assert shape.output == Matrix(64, 320, 1)
    assert shape.attention == (LayerAttention(4, kv_heads, 16, 16 * 4),) * 2
    assert shape.weight_bytes == 2
    assert ModelShape.of(config, 2, torch.int8).attention[0].kv_bytes == 16 + 4  # with a scale


def test_only_experts_that_a_token_goes_to_are_read() -> None:
    config = AutoConfig.for_model("mixtral", vocab_size=320, **FAMILIES["mixtral"])
    shape = ModelShape.of(config, 2, torch.bfloat16)
    assert shape.experts == (Matrix(64, 256, 16), Matrix(128, 64, 16))
    assert shape.routed == (2, 8)
    assert Matrix(64, 8, 2) in shape.projections
    one, two = (list(operations(shape, [Span(7, 1)] * count)) for count in (1, 2))
    up = len(shape.projections)
    assert one[up] == Operation("projections", 64 * 256 * 4 * 2, 2 * 64 * 256 * 4)
    assert two[up] == Operation("projections", 64 * 256 * 7 * 2, 2 * 2 * 64 * 256 * 4)  # 8 * (1 - 0.75^2) = 3.5 a layer


def test_layers_behind_the_last_keys_compute_the_tokens_that_sample() -> None:
    """Two layers have keys, and two attend to them. Those have products for keys and values, these have wider MLPs."""
    config = AutoConfig.for_model("gemma4_text", vocab_size=320, **FAMILIES["gemma4_text"])
    shape = ModelShape.of(config, 2, torch.bfloat16)
    own = [LayerAttention(4, 2, dim, dim * 2, window) for dim, window in ((16, 8), (32, 0))]
    assert shape.attention == (*own, *(replace(layer, has_keys=False) for layer in own))
    assert Matrix(256, 64, 2) in shape.last
    assert Matrix(128, 64, 3) in shape.projections  # and the output of attention in one of them
    assert Matrix(64, 64, 5) in shape.projections  # the inputs of layers, too
    ran = list(operations(shape, [Span(0, 20)]))
    projected = [one for one in ran if one.kind == "projections"]
    assert [one.flops for one in projected] == [
        2 * rows * matrix.elements for rows, some in ((20, shape.projections), (1, shape.last)) for matrix in some
    ]
    assert ran[-1].bytes == (20 * 2 * 2 * 16 + 20 * 2 * 2 * 32) * 2
    assert ran[-1].flops == 4 * 4 * (16 * (36 + 12 * 8 + 8) + 32 * (210 + 20))


def test_weights_of_unknown_use_are_refused() -> None:
    config = AutoConfig.for_model("mamba", hidden_size=64, num_hidden_layers=1, vocab_size=320)
    with pytest.raises(ValueError, match=r"mamba: the operations of .*mixer"):
        ModelShape.of(config, 4, torch.float32)


def test_more_rows_are_as_fast_as_fewer_at_least() -> None:
    fewer, more = MatrixRate(128, 150.0, "mm"), MatrixRate(256, 60.0, "linear")
    parts = MatrixRate(256, 150.0, "mm, in parts")
    assert _at_least(fewer, more) == parts
    assert _at_least(parts, MatrixRate(512, 70.0, "mm")) == MatrixRate(512, 150.0, "mm, in parts")
    assert _at_least(more, fewer) == fewer
