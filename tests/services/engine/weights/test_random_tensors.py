"""Random weights are the same on each path and for each family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES
from transformers import AutoConfig

from load.in_process import Setup, run_in_process
from load.trace import Request
from load.workloads import any_prompt
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.weights.random_tensors import RandomTensors
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
    assert whole.nbytes == 64 * 128 * 4
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
