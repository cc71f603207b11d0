"""Which tensors of a checkpoint a model has, and under which names, as transformers loads it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services import wire
from services.engine.families.kept import fit_file
from services.engine.families.registry import FAMILIES
from services.engine.parallel.layout import RowRange
from services.engine.weights.folder import QuantizedCheckpoint, open_folder
from services.engine.weights.quantized import GroupFormat, Weight
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError
from services.files import write_atomically
from services.models.pooling import pooling_of
from services.models.weights_files import text_name

HEAD = frozenset({"lm_head.weight"})  # which a model without text needs not
PROBLEM = "the weights do not fit config.json"


@dataclass(frozen=True, slots=True)
class Fit:
    """`stored`: the names in the checkpoint of tensors that the model names otherwise, by the model's names. `ignored`:
    tensors that the model does not have."""

    stored: dict[str, str]
    ignored: tuple[str, ...]


def load_fit(folder: Path, cache: Path) -> Fit:
    """The fit of the weights in `folder` to its config. It is kept in `cache`, if that can be written: transformers
    takes seconds to import a family.

    Raises ModelError if a tensor of the model is absent, which transformers would draw at random, or has another shape
    than the config asks for.
    """
    kept = fit_file(folder, cache)
    with contextlib.suppress(OSError, ValueError):  # not kept, or torn because the machine stopped
        return wire.unpack(Fit, kept.read_bytes())
    fit = _fit(folder, open_folder(folder))
    with contextlib.suppress(OSError):
        write_atomically(kept, wire.pack(fit))
    return fit


def _fit(folder: Path, tensors: Checkpoint | QuantizedCheckpoint) -> Fit:
    """Let transformers load tensors that have shapes but no contents, and see which it wants."""
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    from transformers.utils import logging

    from services.engine.families.config import load_config

    config = load_config(folder)
    published = FAMILIES[config.model_type].published
    own = {published(text_name(name)): name for name in tensors.names}
    shapes = {name: torch.empty(tensors.shape(stored), device="meta") for name, stored in own.items()}
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what does not fit is an error here, with a sentence of its own
    with torch.device("meta"):
        model_class: Any = type(AutoModelForCausalLM.from_config(config))
    model = _check(model_class, config, shapes, HEAD if pooling_of(folder) else frozenset())
    wanted, rules = model.state_dict(), get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    found, ignored = {}, []
    for name, stored in own.items():
        renamed, fused = rename_source_key(name, renamings, converters, model.base_model_prefix, wanted)
        if renamed not in wanted:
            renamed, fused = rename_source_key(name, [], [], model.base_model_prefix, wanted)
        if renamed not in wanted:
            ignored.append(stored)
        elif not fused and renamed != stored:
            found[renamed] = stored
    return Fit(found, tuple(sorted(ignored)))


def _check(model_class: Any, config: Any, shapes: dict[str, torch.Tensor], unneeded: frozenset[str]) -> Any:
    """The model of `config` with tensors of these shapes, of which the `unneeded` may be absent. Raises ModelError."""
    try:
        model, found = model_class.from_pretrained(
            None,
            config=config,
            state_dict=shapes,
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:  # tensors cannot be divided or joined as the model needs them
        raise ModelError(f"{PROBLEM}: {' '.join(str(error).split())}") from error
    for name, shape, wanted in sorted(found["mismatched_keys"]):
        raise ModelError(f"{PROBLEM}: {name} has shape {list(shape)}, config.json asks for {list(wanted)}")
    if missing := sorted(set(found["missing_keys"]) - unneeded):
        raise ModelError(f"{PROBLEM}: {describe_missing(missing)}")
    return model


def describe_missing(missing: list[str]) -> str:
    """A sentence that names the first of the tensors that are absent."""
    if missing == ["lm_head.weight"]:
        return (
            "there is no tensor lm_head.weight, and config.json says tie_word_embeddings: false; if the logits of this "
            "model are made by its embedding, set it to true"
        )
    return (
        f"{len(missing)} tensors of the model are absent, such as {missing[0]}; config.json is of other weights, or "
        "weights are incomplete"
    )


class Fitted:
    """The tensors of a checkpoint that a model has, by the model's names and those of the checkpoint. See Tensors."""

    def __init__(self, tensors: Checkpoint | QuantizedCheckpoint, fit: Fit) -> None:
        self._tensors = tensors
        self._stored = fit.stored
        self._ignored = frozenset(fit.ignored)

    @property
    def groups(self) -> dict[str, GroupFormat]:
        stored = self._tensors.groups
        return stored | {name: stored[own] for name, own in self._stored.items() if own in stored}

    def __contains__(self, name: str) -> bool:
        return name in self._stored or (name in self._tensors and name not in self._ignored)

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        return self._tensors.read(self._stored.get(name, name), rows, columns)

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        return self._tensors.weight(self._stored.get(name, name), rows, columns)

    def rows(self, name: str) -> int:
        return self._tensors.rows(self._stored.get(name, name))


def open_fitted(folder: Path, cache: Path, as_stored: bool = False) -> Fitted:
    """The tensors of the model in `folder`, see `load_fit` and `open_folder`. Raises ModelError."""
    return Fitted(open_folder(folder, as_stored), load_fit(folder, cache))
