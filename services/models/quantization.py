"""The quantization method of a checkpoint, and the setting `quantization`, which names it as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.errors import SettingsError
from services.models.json_file import read_json
from services.models.resolve import split

GGUF = "gguf"
MODELOPT = "modelopt"
MODELOPT_FILE = "hf_quant_config.json"  # of ModelOpt, whose older checkpoints say nothing in config.json
SERVED = ("gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4", MODELOPT, "bitsandbytes", GGUF)
# vLLM's names of GPU kernels and of parts of a method, and the method of the checkpoints that they are for
KERNELS = {
    "gptq_marlin": "gptq",
    "gptq_bitblas": "gptq",
    "awq_marlin": "awq",
    "modelopt_fp4": MODELOPT,
    "modelopt_mixed": MODELOPT,
    "modelopt_mxfp8": MODELOPT,
}


def config_of(folder: Path) -> Mapping[str, Any] | None:
    """The `quantization_config` of the model in `folder`, or what ModelOpt's file has instead; None if its tensors are
    numbers. Raises ModelError for a file that is not JSON."""
    config = read_json(folder / "config.json") or {}
    text = config.get("text_config") or {}
    found = [each.get(name) for each in (config, text) for name in ("quantization_config", "compression_config")]
    beside = (read_json(folder / MODELOPT_FILE) or {}).get("quantization") or {}
    if beside.get("quant_algo"):  # absent if only keys and values are to be quantized
        found.append({"quant_method": MODELOPT, **beside})
    return next((each for each in found if each), None)


def method_of(config: Mapping[str, Any]) -> str:
    """The method that a `quantization_config` names."""
    if "quant_method" in config:
        return str(config["quant_method"])
    bits = (name for name in ("load_in_4bit", "load_in_8bit") if config.get(name))
    return "bitsandbytes" if any(bits) else "a method that quantization_config does not name"


def check_quantization(asked: str, model: str, folder: Path) -> None:
    """Raise SettingsError unless the checkpoint `model`, which is in `folder`, has the method `asked`: the setting
    `quantization`, of which empty means any."""
    if not asked:
        return
    wanted, found = KERNELS.get(asked, asked), _found(model, folder)
    if found == wanted:
        return
    if found:
        raise SettingsError(f"quantization={asked}: the checkpoint {folder.name} is quantized with {found}")
    raise SettingsError(
        f"quantization={asked}: the weights of {folder.name} are not quantized; weights=int8 keeps them in eight bits"
    )


def _found(model: str, folder: Path) -> str:
    name, _ = split(model)
    if name == "default" or name.lower().endswith(".gguf"):
        return GGUF
    config = config_of(folder)
    return method_of(config) if config else ""
