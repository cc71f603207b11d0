"""Experts: the names of their tensors, and which ones a token goes to."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from family_check import make_jobs
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES
from transformers import AutoConfig

from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.decoder_weights import Linear
from services.engine.families.registry import open_weights, spec_of
from services.engine.parallel.layout import Partition
from services.engine.settings import EngineSettings
from services.engine.weights.folder import open_folder
from services.engine.weights.random_tensors import RandomTensors
from services.requests import SamplingParams

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=200, threads=1)
CHOSEN = 2  # of each token, in the tiny models


def changed(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of a model with other tensors."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


def fuse(tensors: dict[str, torch.Tensor]) -> None:
    """Gives the experts the names and shapes of transformers 5."""
    for layer in range(2):
        single = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            torch.stack([tensors.pop(f"{single}.{expert}.{name}_proj.weight") for expert in range(8)])
            for name in ("gate", "up", "down")
        )
        tensors[f"{single}.gate_up_proj"] = torch.cat([gates, ups], 1)
        tensors[f"{single}.down_proj"] = downs


@pytest.mark.parametrize("partition", [Partition(), Partition(0, 2), Partition(1, 2)])
def test_fused_tensors_are_the_same_experts(
    partition: Partition, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_model("qwen3_moe")
    spec = spec_of(load_config(folder))
    assert spec
    single, fused = (
        open_weights(spec, open_folder(model), partition).layer(1).experts
        for model in (folder, changed(folder, tmp_path / "fused", fuse))
    )
    assert single
    assert fused
    assert torch.equal(single.router.numbers, fused.router.numbers)
    pairs = list(zip(single.each, fused.each, strict=True))
    assert len(pairs) == 8
    for ours, theirs in pairs:
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.numbers, other.numbers)


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_partitions_have_their_part_of_a_shared_expert(partition: int, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("qwen2_moe")
    spec = spec_of(load_config(folder))
    assert spec
    whole, part = (
        open_weights(spec, open_folder(folder), own).layer(1) for own in (Partition(), Partition(partition, 3))
    )
    assert whole.up
    assert whole.down
    assert part.up
    assert part.down
    own = slice(50 * partition, 50 * (partition + 1))
    assert torch.equal(part.up.numbers, whole.up.numbers.view(2, 150, -1)[:, own].flatten(0, 1))
    assert torch.equal(part.down.numbers, whole.down.numbers[:, own])
    assert whole.experts
    assert len(whole.experts.router.numbers) == 8 + 1


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "gpt_oss"])
def test_shards_read_every_number_of_an_expert_once(family: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    spec = spec_of(load_config(folder))
    assert spec
    whole, *partitions = (
        open_weights(spec, open_folder(folder), partition).layer(0).experts
        for partition in (Partition(), *(Partition(rank, 3) for rank in range(3)))
    )
    assert whole
    count = 0
    for (up, down), *parts in zip(whole.each, *(partition.each for partition in partitions if partition), strict=True):
        assert torch.equal(halves_of([part.numbers for part, _ in parts]), up.numbers)
        assert torch.equal(torch.cat([part.numbers for _, part in parts], 1), down.numbers)
        if family == "gpt_oss":
            assert torch.equal(halves_of([biases(part) for part, _ in parts]), biases(up))
            assert torch.equal(biases(parts[0][1]), biases(down))
        assert all(part.bias is None for _, part in parts[1:])
        count += 1
    assert count == 8
    assert all(partition and torch.equal(partition.router.numbers, whole.router.numbers) for partition in partitions)


def halves_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """The gates of all parts, and then what they multiply."""
    halves = [part.chunk(2) for part in parts]
    return torch.cat([half[i] for i in range(2) for half in halves])


def biases(linear: Linear) -> torch.Tensor:
    assert linear.bias is not None
    return linear.bias


def test_random_experts_are_the_same_alone() -> None:
    config = AutoConfig.for_model("mixtral", vocab_size=20, **FAMILIES["mixtral"])
    tensors = RandomTensors(config, torch.float32, torch.device("cpu"))
    name = "model.layers.0.mlp.experts.down_proj"
    assert torch.equal(tensors.read(name)[3:5], tensors.read(name, (3, 5)))


def test_only_the_chosen_experts_are_used_and_of_equal_ones_the_first(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """All logits of the router are equal, and all experts but the first ones have no numbers."""

    def equal(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("mlp.gate.weight"):
                tensor.zero_()
            if ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) >= CHOSEN:
                tensor.fill_(torch.nan)

    def all_equal(tensors: dict[str, torch.Tensor]) -> None:
        equal(tensors)
        for name, tensor in tensors.items():
            if ".experts." in name:
                tensor.nan_to_num_(0.0)

    outputs = []
    for name, change in (("nan", equal), ("zero", all_equal)):
        engine = Engine.load(changed(tiny_model("qwen3_moe"), tmp_path / name, change), SETTINGS)
        assert engine.figures.numerics.endswith("native")
        outputs.append([job.output for job in Driver(engine, random.Random(1)).run(make_jobs(random.Random(7)))])
    assert outputs[0] == outputs[1]
    assert len({token for output in outputs[0] for token in output}) > 20


def test_a_token_without_numbers_harms_no_other(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Its embedding is NaN, so the router's logits are."""
    prompt = [5, 77, 6]

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.embed_tokens.weight"][prompt[1]] = torch.nan

    good, alone = (make_jobs(random.Random(7), count=3) for _ in range(2))
    assert not any(prompt[1] in job.prompt for job in good)
    engine = Engine.load(changed(tiny_model("qwen3_moe"), tmp_path / "spoilt", spoil), SETTINGS)
    Driver(engine).run(alone)
    bad = Job("bad/0", prompt, SamplingParams(4))
    Driver(engine, max_batch=4).run([bad, *good])
    assert bad.failed
    assert [job.output for job in good] == [job.output for job in alone]
