"""ModelInfo: what gateways and schedulers need to know of a model, read from its JSON files without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.errors import ModelError, SettingsError
from services.models.contents import contents
from services.models.gguf_index import GgufIndex
from services.models.json_file import read_json
from services.models.pooling import BEHIND_PADDING, Pooling, read_pooling
from services.models.weights_files import weights_files
from services.text.tokenizer_config import end_token

# The names of the longest context in the configs of different families, the most reliable first.
_LENGTHS = (
    "max_position_embeddings",
    "model_max_length",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`name` is the name of the folder. `revision` is a hash of config and weights. `vocab_size` is the number of
    logits, of which a tokenizer may use fewer. `eos_token_ids`: those of the configs, and the tokenizer's `eos_token`,
    at which vLLM ends outputs too.
    """

    name: str
    revision: str
    architecture: str
    max_model_len: int  # tokens, prompt and output together; of a text, if the model makes vectors
    vocab_size: int
    eos_token_ids: frozenset[int]
    pooling: Pooling | None = None  # of a model that makes vectors of texts in place of text

    @classmethod
    def load(cls, folder: Path, cache_dir: Path | None = None, revision: str = "") -> ModelInfo:
        """Read the files of the model in `folder`. A given `revision` is not checked; otherwise the weights are hashed,
        once if there is a `cache_dir` (see `contents`). Raises ModelError, which names a missing file or field.
        """
        raw = read_json(folder / "config.json")
        if raw is None:
            raise ModelError(f"{folder} is no transformers model: it has no config.json")
        text = raw.get("text_config") or raw  # the decoder of a multimodal model
        generation = read_json(folder / "generation_config.json") or {}
        architectures = raw.get("architectures") or [_field(folder, raw, "model_type")]
        pooling = read_pooling(folder, raw)
        length = extended(_field(folder, text, *_LENGTHS), text.get("rope_parameters") or text.get("rope_scaling"))
        if raw.get("model_type") in BEHIND_PADDING:
            length -= 1 + (raw.get("pad_token_id") or 0)
        return cls(
            name=folder.name,
            revision=revision or _revision(folder, cache_dir),
            architecture=architectures[0],
            max_model_len=min(length, pooling.max_length or length) if pooling else length,
            vocab_size=_field(folder, text, "vocab_size"),
            eos_token_ids=(_ids(folder, generation) or _ids(folder, raw) or _ids(folder, text)) | end_token(folder),
            pooling=pooling,
        )


def is_complete(folder: Path) -> bool:
    """Whether the JSON files of the model in `folder` say all that `ModelInfo` reads. What they leave out has the
    defaults of transformers' class."""
    raw = read_json(folder / "config.json") or {}
    text, generation = raw.get("text_config") or raw, read_json(folder / "generation_config.json") or {}
    ends = any("eos_token_id" in part for part in (generation, raw, text)) or read_pooling(folder, raw) is not None
    length = any(text.get(name) is not None for name in _LENGTHS)
    return ends and length and text.get("vocab_size") is not None


def extended(length: int, rope: Mapping[str, Any] | None) -> int:
    """The longest request of a model whose config names `length` and these rotary embeddings. YaRN extends the length
    that the model was trained with by its factor, as in vLLM; configs may name either length."""
    ropes = [each for each in (rope or {}, *(rope or {}).values()) if isinstance(each, Mapping)]
    for each in ropes:
        factor = each.get("factor")
        if each.get("rope_type", each.get("type")) == "yarn" and isinstance(factor, int | float):
            trained = each.get("original_max_position_embeddings") or length
            length = max(length, int(trained * factor))
    return length


def choose_length(own: int, asked: int) -> int:
    """The longest request in tokens: `asked`, or the model's own limit. Raises SettingsError if `asked` is longer."""
    if asked > own:
        raise SettingsError(f"max_model_len={asked} is over the model's {own}")
    return asked or own


def _field(folder: Path, config: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    raise ModelError(
        f"{folder / 'config.json'}, of type {config.get('model_type', 'unknown')!r}, says none of: {', '.join(names)}; "
        "models without a longest request are not served, see docs/models.md"
    )


def _ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Return the end tokens in a config. As in `generate()`, generation_config.json goes before config.json. A value of
    another type would never equal a token, so that no output would end."""
    ids = config.get("eos_token_id")
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(type(id) is int for id in listed):
        raise ModelError(f"{folder}: eos_token_id must be a token id or a list of them, not {ids!r}")
    return frozenset(listed)


def _revision(folder: Path, cache_dir: Path | None) -> str:
    if index := GgufIndex.read(folder):
        for source in index.sources:
            source.check()
        weights = index.contents
    else:
        weights = [(file.name, contents(file, cache_dir)) for file in weights_files(folder)]
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    digest.update(repr(weights).encode())
    return digest.hexdigest()[:12]
