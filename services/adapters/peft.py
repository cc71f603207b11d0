"""Reads LoRA adapters as PEFT saves them, and checks that they fit a model. Imports no torch."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import regex
from safetensors import SafetensorError, deserialize

from services.errors import ModelError
from services.models.json_file import read_json
from services.models.linears import LinearShape
from services.models.weights_files import text_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
MOST_RANK = 256
SECONDS = 2.0  # that the patterns of a config may take when it is checked

Numbers = np.ndarray[Any, np.dtype[np.float32]]
Matches = Callable[[str, str], "regex.Match[str] | None"]

_ROOT = "base_model.model."  # begins PEFT's names
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
# fields of a config that change no output, or that are read here
_FIELDS = frozenset(
    {
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying"),
        *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
        *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_type"),
        *("peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules"),
        *("task_type", "use_rslora", "velora_config"),
    }
)
_KINDS = {
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "layer_replication": "layers that are used twice",
    "lora_bias": "biases",
    "modules_to_save": "whole modules beside the low ranks",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "experts, or other tensors that are no linear layers",
    "trainable_token_indices": "tokens of the embedding",
    "use_bdlora": "block-diagonal LoRA",
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
}
_OWN_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initial values for which the base's weights are changed
_LARGEST = float(np.finfo(np.float32).max)
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """What an adapter is: its highest rank, its bytes in an engine's memory, and the base that its config names, which
    may be empty."""

    rank: int
    bytes: int
    base: str


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a linear layer's output: scale * b (a x)."""

    a: Numbers  # [rank, inputs]
    b: Numbers  # [outputs, rank]
    scale: float


def check(folder: Path, linears: Mapping[str, LinearShape], most_rank: int = MOST_RANK) -> AdapterSpec:
    """What the adapter in `folder` is, for a model with these linear layers (see `load_linears`). Raises ValueError
    with a sentence for one that is broken, made for another model, or of a kind that is not served."""
    parts = read(folder, linears, most_rank, SECONDS)
    return AdapterSpec(
        rank=max(len(part.a) for part in parts.values()),
        bytes=sum(part.a.nbytes + part.b.nbytes for part in parts.values()),
        base=str(_config(folder).get("base_model_name_or_path") or ""),
    )


def read(
    folder: Path, linears: Mapping[str, LinearShape], most_rank: int = MOST_RANK, seconds: float = math.inf
) -> dict[str, LowRank]:
    """The parts of the adapter in `folder`, by the names of the model's linear layers. Raises ValueError as `check`
    does, also if the patterns of its config take more than so many seconds."""
    config = _config(folder)
    _check_kind(config)
    _check_types(config)
    matches = _matcher(seconds)
    pairs = _pairs(folder, config, linears)
    for name in _targets(config, linears, matches):
        if linears[name].obstacle:
            raise ValueError(f"{CONFIG} targets {name}, which {linears[name].obstacle}")
        if name not in pairs:
            raise ValueError(f"{WEIGHTS} lacks the tensors of {name}, which {CONFIG} targets; save the adapter again")
    return {name: _part(name, pair, config, linears[name], most_rank, matches) for name, pair in pairs.items()}


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG)
    except ModelError as error:
        raise ValueError(str(error)) from None
    if config is None and not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if config is None:
        raise ValueError(f"{folder} is no adapter of PEFT: it has no {CONFIG}")
    return config


def _check_kind(config: Mapping[str, Any]) -> None:
    """Refuse what is more than low ranks beside linear layers."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{CONFIG}: peft_type={kind} is not served; LORA is")
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: bias={config['bias']!r} (biases of the base) is not served; use 'none'")
    initial = config.get("init_lora_weights", True)
    if isinstance(initial, str) and initial.startswith(_OWN_BASE):
        raise ValueError(
            f"{CONFIG}: init_lora_weights={initial!r} has changed the base's weights, too; save the adapter with "
            "path_initial_model_for_weight_conversion, which makes it one of the unchanged base"
        )
    for field, value in config.items():
        if value and field not in _FIELDS:
            named = f" ({_KINDS[field]})" if field in _KINDS else ""
            raise ValueError(f"{CONFIG}: {field}={value!r:.100}{named} is not served; train the adapter without it")


def _check_types(config: Mapping[str, Any]) -> None:
    """Refuse fields that choose layers, ranks and alphas by something else than names and numbers."""
    choices: dict[str, tuple[type, type]] = {
        "target_modules": (str, str),
        "exclude_modules": (str, str),
        "layers_pattern": (str, str),
        "layers_to_transform": (int, int),
        "rank_pattern": (dict, int),
        "alpha_pattern": (dict, int),
    }
    for field, (whole, each) in choices.items():
        value = config.get(field)
        is_list = whole is not dict and isinstance(value, list) and all(isinstance(one, each) for one in value)
        if not (value is None or isinstance(value, whole) or is_list):
            raise ValueError(f"{CONFIG}: {field}={value!r:.100} is not of a type that PEFT writes")


def _pairs(
    folder: Path, config: Mapping[str, Any], linears: Mapping[str, LinearShape]
) -> dict[str, dict[str, Numbers]]:
    """The tensors `A` and `B` of each linear layer, by its name."""
    pairs: dict[str, dict[str, Numbers]] = {}
    for key, tensor in _tensors(folder):
        found = _KEY.fullmatch(key.removeprefix(_ROOT))
        if found is None:
            dora = " (DoRA)" if "lora_magnitude_vector" in key else ""
            raise ValueError(f"{WEIGHTS}: {key}{dora} is no low rank of a linear layer; only such tensors are served")
        module = found["module"]
        name = module if module in linears else text_name(module)
        if name not in linears:
            of = config.get("base_model_name_or_path") or "another model"
            raise ValueError(f"{WEIGHTS}: this model has no linear layer {module}; the adapter is for {of}")
        if linears[name].obstacle:
            raise ValueError(f"{WEIGHTS} has tensors for {module}, which {linears[name].obstacle}")
        pairs.setdefault(name, {})[found["side"]] = tensor
    if not pairs:
        raise ValueError(f"{WEIGHTS} holds no tensors")
    return pairs


def _tensors(folder: Path) -> Iterator[tuple[str, Numbers]]:
    """The names and numbers of all tensors, as float32."""
    try:
        stored: list[tuple[str, Any]] = deserialize((folder / WEIGHTS).read_bytes())
    except FileNotFoundError:
        if pickle := next((name for name in PICKLES if (folder / name).exists()), None):
            raise ValueError(f"{pickle} is a pickle, which can execute code; save the adapter as {WEIGHTS}") from None
        raise ValueError(f"{folder} has no {WEIGHTS}") from None
    except OSError as error:
        raise ValueError(f"{folder / WEIGHTS} cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is broken: {error}") from None
    for key, tensor in sorted(stored, key=itemgetter(0)):
        if tensor["dtype"] not in _DTYPES:
            raise ValueError(f"{WEIGHTS}: {key} has numbers of type {tensor['dtype']}; use {', '.join(_DTYPES)}")
        numbers = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        if tensor["dtype"] == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{WEIGHTS}: {key} has NaN or infinite numbers")
        yield key, numbers.astype(np.float32)


def _part(
    name: str,
    pair: Mapping[str, Numbers],
    config: Mapping[str, Any],
    shape: LinearShape,
    most_rank: int,
    matches: Matches,
) -> LowRank:
    if len(pair) < 2:
        raise ValueError(f"{WEIGHTS} has only lora_{next(iter(pair))} of {name}; save the adapter again")
    rank = _number(config, "r", "rank_pattern", name, matches)
    if rank > most_rank:
        raise ValueError(f"{CONFIG}: rank {rank} of {name} is over the limit of {most_rank}")
    for side, wanted in ("A", (int(rank), shape.inputs)), ("B", (shape.outputs, int(rank))):
        if pair[side].shape != wanted:
            raise ValueError(
                f"{WEIGHTS}: lora_{side} of {name} has shape {list(pair[side].shape)}, and rank and model ask for "
                f"{list(wanted)}; the adapter is for {config.get('base_model_name_or_path') or 'another model'}"
            )
    alpha = _number(config, "lora_alpha", "alpha_pattern", name, matches)
    return LowRank(pair["A"], pair["B"], alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _number(config: Mapping[str, Any], field: str, patterns: str, name: str, matches: Matches) -> float:
    """The rank or alpha of a linear layer: that of the first pattern which is the end of its name, or of all."""
    value = config.get(field)
    for pattern, own in (config.get(patterns) or {}).items():
        if matches(rf"(.*\.)?({pattern})", name):
            value = own
            break
    whole = field == "r"
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not (1 if whole else -_LARGEST) <= value <= _LARGEST:
        raise ValueError(
            f"{CONFIG}: {field} of {name} is {value!r:.100}, which is no {'positive ' if whole else ''}number"
        )
    return value


def _targets(config: Mapping[str, Any], linears: Mapping[str, LinearShape], matches: Matches) -> list[str]:
    """The linear layers that the config targets, as PEFT chooses them."""
    targets, layers = config.get("target_modules"), config.get("layers_to_transform")
    if targets == "all-linear":
        targets = [name for name, shape in linears.items() if not shape.obstacle]
    excluded = config.get("exclude_modules") or []
    found = [n for n in linears if _named(targets or [], n, matches) and not _named(excluded, n, matches)]
    if layers is None or layers == [] or isinstance(targets, str):
        return found
    kept = {layers} if isinstance(layers, int) else set(layers)
    return [name for name in found if _layer(name, config.get("layers_pattern"), matches) in kept]


def _named(names: str | list[str], module: str, matches: Matches) -> bool:
    if isinstance(names, str):
        return matches(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _layer(module: str, patterns: str | list[str] | None, matches: Matches) -> int | None:
    """The number of the layer that a module is in."""
    names = [patterns] if isinstance(patterns, str) else patterns or [r"[^.]*"]
    found = (matches(rf"(?:.*?\.)?(?:{name})\.(?P<layer>\d+)\..*", module) for name in names)
    return next((int(each["layer"]) for each in found if each), None)


def _matcher(seconds: float) -> Matches:
    """What matches whole names with patterns, for so many seconds in all, and lets other threads run meanwhile."""
    until = time.monotonic() + seconds

    def matches(pattern: str, name: str) -> regex.Match[str] | None:
        left = until - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            return regex.fullmatch(pattern, name, timeout=left if left < math.inf else None, concurrent=True)
        except regex.error as error:
            raise ValueError(f"{CONFIG}: {pattern!r:.100} is no regular expression: {error}") from None
        except TimeoutError:
            raise ValueError(f"{CONFIG}: matching {pattern!r:.100} takes more than {seconds:g} seconds") from None

    return matches
