"""A checkpoint that a tool has written, compared with what the tool itself computes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from family_check import STOCK, check_family
from routing import Flip, flips, forward
from safetensors.torch import load_file, save_file

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.weights.folder import QuantizedCheckpoint, open_folder

PROMPT = (5, 17, 33, 48, 60, 99, 120, 7, 250, 31)
NAMES = {".block_sparse_moe.": ".mlp.", ".w1.": ".gate_proj.", ".w3.": ".up_proj.", ".w2.": ".down_proj."}  # Mixtral's
LOGITS = 0.25  # of their deviation: what the tool's rounding may make of them. Another expert makes it 1
NUMBERS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Compared:
    """`as_stored` of `modules` quantized weights run so; they have `weights` numbers. `off`: the largest difference of
    the tool's logits from those of the numbers, whose deviation is `spread`; `off_routed` if every token has the
    experts that the tool chose."""

    as_stored: int
    modules: int
    weights: int
    off: float
    spread: float
    off_routed: float
    flips: tuple[Flip, ...]


def compare(written: Path, model: Path, scratch: Path) -> Compared:
    """The checkpoint in `written`, made of `model`. Fails unless every weight is the tool's, tokens, with weights as
    stored and widened, are those of `generate()` with the tool's weights, and logits are about the tool's."""
    computed, checkpoint = load_file(written / "computed.safetensors"), written / "checkpoint"
    weights = {_common(name[7:]): each for name, each in computed.items() if name.startswith("weight ")}
    tensors = open_folder(checkpoint)
    assert isinstance(tensors, QuantizedCheckpoint)
    quantized = [name for name in tensors.names if name in tensors.quantization.weights]
    assert {_common(name) for name in quantized} == weights.keys(), "the same weights are quantized"
    for name in quantized:
        other = int((tensors.read(name) != weights[_common(name)].to(torch.bfloat16)).sum())
        assert not other, f"{other} of the weights of {name} are not the tool's"
    reference = _numbers(checkpoint, model, weights, scratch / "reference")
    for kept in ("auto", "dtype"):
        engine = check_family(checkpoint, replace(STOCK, fast_path=True, weights=kept), reference=reference)
        if kept == "auto":
            as_stored = _as_stored(engine, set(quantized))
    logits, routed = forward(reference, PROMPT)
    routers = {name[7:]: each for name, each in computed.items() if name.startswith("router ")}
    assert len(routers) == len(routed), "the tool's routers"
    turned = flips(routed, list(routers.values()))
    forced = forward(reference, PROMPT, [each.chosen for each in turned])[0] if routers else logits
    off = _apart(forced, computed["logits"])
    assert off < LOGITS * logits.std(), f"the tool's logits are {off} off"
    return Compared(
        as_stored,
        len(quantized),
        sum(weight.numel() for weight in weights.values()),
        _apart(logits, computed["logits"]),
        float(logits.std()),
        off,
        tuple(flip for each in turned for flip in each.flips),
    )


def _common(name: str) -> str:
    """The name of a weight in all layouts of experts."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def _numbers(checkpoint: Path, model: Path, weights: Mapping[str, torch.Tensor], folder: Path) -> Path:
    """A folder of the tool's weights, rounded to bfloat16, and what the checkpoint has as numbers, under the names of
    the model."""
    stored = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        stored |= load_file(file)
    plain = {_common(name): each for name, each in stored.items() if each.dtype in NUMBERS}
    found = {}
    for name in [*load_file(model / "model.safetensors"), "lm_head.weight"]:
        if (common := _common(name)) in weights:
            found[name] = weights[common].to(torch.bfloat16).float().contiguous()
        elif common in plain:
            found[name] = plain[common].float()
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    config.pop("quantization_config", None)  # ModelOpt may have it in a file of its own
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    return folder


def _as_stored(engine: Engine, quantized: set[str]) -> int:
    assert isinstance(engine.decoder, CpuDecoder)
    return sum(stored and name in quantized for name, stored in engine.decoder.as_stored.items())


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
