"""Tokens of quantized folders equal those of `generate()` on the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from family_check import STOCK, check_family
from folders import quantize_folder
from marked import full
from tiny_models import make_tiny_model
from written import GPTQ, WRITERS, gptq

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.errors import ModelError


@pytest.mark.parametrize(
    ("name", "fast_path"),
    [(name, True) for name in ("gptq, act-order", "awq", "fp8, blocks", "bitsandbytes, nf4, scales too")]
    + [(name, False) for name in ("compressed, nvfp4", "modelopt, fp8")]
    + full((name, True) for name in ("gptq", "compressed, int8", "compressed, mxfp4", "modelopt, nvfp4"))
    + full((name, False) for name in ("awq", "compressed, fp8", "bitsandbytes, int8")),
)
def test_tokens_equal_generate(name: str, fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[name])
    engine = check_family(quantized, replace(STOCK, fast_path=fast_path), reference=numbers)
    assert engine.figures.numerics.endswith("native") == fast_path
    if fast_path:
        assert (_packed(engine) is not None) == ("act-order" not in name), "executed as stored"


def _packed(engine: Engine) -> object:
    """The format of a product's integers; None if it is kept as numbers."""
    assert isinstance(engine.decoder, CpuDecoder)
    return engine.decoder._packed.layers[0].output.groups


@pytest.mark.parametrize("family", ["glm", "phi3"])
def test_heads_in_another_order_are_executed_as_stored(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rotary embeddings are interleaved, or partial."""
    quantized, numbers = quantize_folder(tiny_model(family), tmp_path, *WRITERS["gptq"])
    engine = check_family(quantized, replace(STOCK, fast_path=True), reference=numbers)
    assert isinstance(engine.decoder, CpuDecoder)
    assert engine.decoder._packed.layers[0].qkv.groups is not None


def test_modules_that_were_not_converted(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Of products that the engine fuses, one is quantized and one is not."""
    quantized, numbers = quantize_folder(tiny_model("qwen3"), tmp_path, *WRITERS["gptq"], kept="k_proj")
    check_family(quantized, replace(STOCK, fast_path=True), reference=numbers)


def test_modules_of_several_bits(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """As GPTQModel writes them: `dynamic` names the modules, and by default a quantized vocabulary has 8 bits."""
    others = {"down_proj": gptq(bits=8), "k_proj": gptq(bits=2), "lm_head": gptq(bits=8)}
    config = {**GPTQ, "dynamic": {"+:.*down_proj.*": {"bits": 8}, "-:.*o_proj.*": {}, "lm_head": {"bits": 8}}}
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, config, gptq(), "o_proj", others)
    engine = check_family(quantized, replace(STOCK, fast_path=True), reference=numbers)
    assert isinstance(engine.decoder, CpuDecoder)
    layer = engine.decoder._packed.layers[0]
    assert layer.output.groups is None
    assert layer.down.groups is not None


NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # Mixtral's, and those of other families


@pytest.mark.parametrize(
    ("family", "name", "renamed", "fast_path"),
    [
        ("qwen3_moe", "gptq", {}, True),
        ("qwen3_moe", "awq", {}, False),
        ("mixtral", "gptq", {"block_sparse_moe": "mlp", **NAMES}, True),  # GPTQModel
        ("mixtral", "compressed, fp8", NAMES, True),  # llm-compressor
        *full(
            [
                ("qwen3_moe", "fp8, by output", {}, True),
                ("qwen3_moe", "modelopt, nvfp4", {}, True),
                ("mixtral", "awq", {}, True),
                ("mixtral", "gptq", {}, False),
            ]
        ),
    ],
)
def test_experts(family: str, name: str, renamed: dict[str, str], fast_path: bool, tmp_path: Path) -> None:
    """Each expert's modules are quantized on their own, under the names of each tool."""
    plain = make_tiny_model(tmp_path / "plain", family, with_tokenizer=False, **SIZES[family])
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS[name], renamed=renamed)
    check_family(quantized, replace(STOCK, fast_path=fast_path), reference=numbers)


def test_experts_under_names_that_transformers_lacks_are_refused(tmp_path: Path) -> None:
    """On the stock backend. transformers would give them random weights."""
    plain = make_tiny_model(tmp_path / "plain", "mixtral", with_tokenizer=False)
    quantized, _ = quantize_folder(plain, tmp_path, *WRITERS["gptq"], renamed={"block_sparse_moe": "mlp", **NAMES})
    with pytest.raises(ModelError, match=r"\d+ tensors of the model are absent, such as .*experts"):
        Engine.load(quantized, STOCK)


SIZES: dict[str, dict[str, int]] = {"qwen3_moe": {"moe_intermediate_size": 64}, "mixtral": {}}  # divided by groups
