"""Experts whose weights run as they are stored give the bits of the same weights widened to bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from driver import outcome_in_any_batch
from folders import quantize_folder
from safetensors.torch import load_file
from tiny_models import make_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig
from written import WRITERS

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.stock.loading import read_model
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.weights.tensors import Checkpoint
from services.models.gguf_index import KINDS as KEPT
from services.models.gguf_index import Source
from services.models.gguf_weights import GgufWeights, write_weights

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)
EXPERTS, LAYERS = 8, 2
INNER = 768  # transformers takes this size for every GGUF file of the family
KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q5_1")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = {"moe_intermediate_size": INNER, "head_dim": 16}
    return make_tiny_model(tmp_path_factory.mktemp("plain"), "qwen3_moe", 201, with_tokenizer=False, **size)


def write_gguf(plain: Path, file: Path, kinds: tuple[str, ...]) -> None:
    """The model as llama.cpp writes it: the experts of a layer are one tensor. `kinds`: of the products, in turn."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    config, writer = model.config, gguf.GGUFWriter(file, "qwen3moe")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_vocab_size(config.vocab_size)
    weights = dict(model.state_dict())
    for layer in range(LAYERS):
        experts = f"model.layers.{layer}.mlp.experts"
        weights[f"{experts}.gate_proj"], weights[f"{experts}.up_proj"] = weights.pop(f"{experts}.gate_up_proj").chunk(
            2, 1
        )
    named = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, LAYERS).get_name
    for i, (name, weight) in enumerate(sorted(weights.items())):
        numbers, found = np.ascontiguousarray(weight.numpy()), f"{named(name.removesuffix('.weight'))}.weight"
        if numbers.ndim == 1 or name.endswith("mlp.gate.weight"):
            writer.add_tensor(found, numbers)
            continue
        kind = gguf.GGMLQuantizationType[kinds[i % len(kinds)]]
        writer.add_tensor(found, gguf.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(file: Path, target: Path) -> Path:
    """The config and the weights; the file has no tokenizer."""
    tensors = gguf.GGUFReader(file).tensors
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    target.mkdir()
    weights = GgufWeights([tensors], "qwen3moe", model, torch.bfloat16, KEPT)
    write_weights(weights, [Source.of(file)], target, lambda _done, _total: None).write(target)
    config.dtype = "bfloat16"
    config.save_pretrained(target)
    return target


@pytest.fixture(scope="module", params=["gguf", "gptq", "awq", "compressed, 4 bits", "fp8, blocks"])
def folder(plain: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    made = tmp_path_factory.mktemp("stored")
    if request.param != "gguf":
        return quantize_folder(plain, made, *WRITERS[request.param])[0]
    write_gguf(plain, made / "tiny.gguf", KINDS)
    return convert(made / "tiny.gguf", made / "converted")


@pytest.mark.parametrize("kinds", [KINDS, ("Q8_0", "F16", "Q4_0")], ids=["blocks", "blocks and numbers"])
def test_transformers_reads_the_same_numbers_from_file_and_folder(
    kinds: tuple[str, ...], plain: Path, tmp_path: Path
) -> None:
    """Each expert is a tensor in the folder, in blocks or not."""
    write_gguf(plain, tmp_path / "tiny.gguf", kinds)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", quantization_config=GgufConfig(dequantize=True), dtype="bfloat16"
    )
    folder = convert(tmp_path / "tiny.gguf", tmp_path / "converted")
    stored, numbers = Checkpoint(folder, as_stored=True), load_file(folder / "model.safetensors")
    assert numbers.keys().isdisjoint(stored.groups)
    products = [name for name in stored.names if name.endswith("_proj.weight")]
    assert len(products) == (4 + 3 * EXPERTS) * LAYERS
    assert (numbers.keys() & set(products) == set()) == ("F16" not in kinds)
    found = read_model(folder, torch.bfloat16).state_dict()
    assert found.keys() == theirs.state_dict().keys()
    assert all(torch.equal(found[name], weight) for name, weight in theirs.state_dict().items())


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_bits_are_those_of_the_widened_experts(folder: Path, settings: EngineSettings) -> None:
    found = []
    variants: list[EngineSettings] = [replace(settings, weights="auto"), replace(settings, weights="dtype")]
    for variant in variants:
        engine = Engine.load(folder, variant)
        assert isinstance(engine.decoder, CpuDecoder)
        for layer in engine.decoder._packed.layers:
            assert layer.experts
            matrices = [*layer.experts.up, *layer.experts.down]
            assert len(matrices) == 2 * EXPERTS
            assert all(each.kind.name.startswith("GROUPS") == (variant.weights == "auto") for each in matrices)
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 90)), engine.figures.numerics))
    assert found[0] == found[1]
