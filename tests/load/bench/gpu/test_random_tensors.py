"""Random weights are the same on each path and for each family; real configurations have their real sizes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES
from transformers import AutoConfig

from load.bench.engine.batches import Batches
from load.bench.engine.floor import Span
from load.bench.gpu.configurations import CONFIGURATIONS
from load.in_process import Setup, run_in_process
from load.trace import Request
from load.workloads import any_prompt
from services.engine.engine import Engine
from services.engine.families.tensors import RandomTensors
from services.engine.settings import EngineSettings
from services.errors import ModelError
from services.scheduling import Knobs

CPU = torch.device("cpu")


def load(folder: Path, family: str, fast_path: bool) -> Engine:
    config = AutoConfig.for_model(family, vocab_size=320, **FAMILIES[family])
    config.save_pretrained(folder)
    settings = EngineSettings("cpu", "float32", fast_path=fast_path, kv_blocks=64)
    return Engine.load(folder, settings, tensors=RandomTensors(config, torch.float32, CPU))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma3_text"])
def test_both_paths_have_the_same_weights(tmp_path: Path, family: str) -> None:
    requests = [Request(any_prompt(20, seed), 12) for seed in range(3)]
    engines = [load(tmp_path / family, family, fast_path) for fast_path in (True, False)]
    assert engines[0].decoder.path != engines[1].decoder.path
    outputs = [run_in_process(engine, requests, Setup(Knobs(3))).outputs for engine in engines]
    assert outputs[0] == outputs[1]


def test_a_tensor_is_the_same_in_parts(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", vocab_size=320, **FAMILIES["llama"])
    tensors = RandomTensors(config, torch.float32, CPU)
    name = "model.layers.0.mlp.down_proj.weight"
    whole = tensors.read(name)
    assert tensors.bytes_read == whole.nbytes == 64 * 128 * 4
    assert torch.equal(tensors.read(name, rows=(3, 9)), whole[3:9])
    assert torch.equal(tensors.read(name, columns=(3, 9)), whole[:, 3:9])
    assert tensors.rows(name) == 64
    assert whole.std() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(whole, tensors.read(name.replace("layers.0", "layers.1")))
    assert tensors.read("model.norm.weight").mean() == pytest.approx(1.0, abs=0.02)
    gemma = RandomTensors(AutoConfig.for_model("gemma2", **FAMILIES["gemma2"]), torch.float32, CPU)
    assert gemma.read("model.norm.weight").mean() == pytest.approx(0.0, abs=0.02)  # it multiplies by 1 more
    assert "lm_head.bias" not in tensors
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.bias'"):
        tensors.read("lm_head.bias")


@pytest.mark.parametrize(("name", "billions"), [("gpt-13b", 12.85), ("llama-3-8b", 8.03), ("qwen3-0.6b", 0.596)])
def test_the_real_configurations_are_as_large_as_they_say(name: str, billions: float) -> None:
    of = CONFIGURATIONS[name]
    tensors = RandomTensors(of.config(), torch.bfloat16, CPU)
    assert sum(map(math.prod, tensors._shapes.values())) / 1e9 == pytest.approx(billions, rel=0.005)
    assert ("lm_head.weight" in tensors) == (name == "llama-3-8b")  # the others' vocabulary is their embedding
    assert max(of.contexts) < of.max_model_len


def test_mixed_iterations_are_both_kinds_in_one(tmp_path: Path) -> None:
    batches = Batches(load(tmp_path / "tiny", "llama", True))
    first, second = batches.mixed(2, 16, 1, 24, 2)
    assert first.spans == (Span(16, 1), Span(16, 1), Span(0, 24))
    assert second.spans == (Span(17, 1), Span(17, 1), Span(0, 24))
    assert batches.fits_mixed(28, 32, 4, 32)
    assert not batches.fits_mixed(28, 32, 5, 32)
    whole = batches.whole(2, 24, 3)
    assert [one.spans for one in whole] == [(Span(0, 24),) * 2, (Span(24, 1),) * 2, (Span(25, 1),) * 2]
