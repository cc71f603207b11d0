"""StockEncoder: a model of transformers whose tokens attend to all tokens of their text. It keeps nothing of them: all
of a text is computed in one iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging as transformers_logging

from services.engine.adapters import AdapterSlots
from services.engine.backends.stock.attention import PROBE, AttentionCall, attending
from services.engine.backends.stock.masks import MaskRequest
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape, StateShape
from services.engine.families.fit import describe_missing
from services.engine.weights.description import tensor_bytes
from services.engine.weights.tensors import Tensors
from services.errors import ModelError
from services.models.pooling import BEHIND_PADDING, Pooling

LENGTHS = (3, 4)  # tokens of the texts that check a model
TOLERANCE = 1e-3  # of their largest number; bfloat16 has its own
MAY_BE_ABSENT = "pooler."  # what only classifiers of some families use


class StockEncoder:
    """Runs the texts of an iteration flat as [1, total_tokens], with attention within each text. See Decoder."""

    def __init__(self, model: Any, pooling: Pooling, path: str) -> None:
        self.path = path
        self.layers: list[LayerShape] = []
        self.layers_in_memory: list[LayerShape] = []
        self.states: Sequence[StateShape] = ()
        self.as_stored: Mapping[str, bool] = {}
        self.weight_dtype = self.cache_dtype = model.dtype
        self.weight_bytes = model.dtype.itemsize
        self.reads_past_end = False
        self.adapters: AdapterSlots | None = None
        self.memory = tensor_bytes(list(model.parameters()))
        config = model.config
        self._model, self._base, self._classifies = model, model.base_model, pooling.kind == "classify"
        self._averages = self._classifies and getattr(config, "classifier_pooling", None) == "mean"
        self._first_position = 1 + (config.pad_token_id or 0) if config.model_type in BEHIND_PADDING else 0
        self._types = getattr(config, "type_vocab_size", 0) > 1

    def bind(self, cache: KVCache) -> None:
        """Nothing of a token is kept."""

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder: hidden states, or the scores of classes."""
        seconds = [state.sampling.second_text for state in batch.sampled]
        hidden = self.hidden(batch.input_ids, batch.starts, seconds)
        ends = torch.from_numpy(batch.ends).to(hidden.device, torch.long)
        if not self._classifies:
            return hidden[ends]
        if self._averages:
            lengths = np.diff(batch.starts).tolist()
            rows = torch.stack([text.float().mean(0) for text in hidden.split(lengths)]).to(hidden.dtype)
        else:
            rows = hidden[ends]
        return torch.cat([self._scores(row) for row in rows])

    def logits_after(self, tokens: Numbers) -> torch.Tensor | None:
        raise AssertionError("an encoder scores no prompts")

    def hidden(self, ids: Numbers, starts: Numbers, seconds: Sequence[int]) -> torch.Tensor:
        """Hidden states [total_tokens, hidden] of texts `starts[i]` to `starts[i + 1]`; `seconds`: see
        SamplingParams."""
        lengths = np.diff(starts)
        positions = np.arange(len(ids)) - np.repeat(starts[:-1], lengths)
        inputs = {"input_ids": ids, "position_ids": positions + self._first_position}
        if self._types:
            inputs["token_type_ids"] = (positions >= np.repeat([s or len(ids) for s in seconds], lengths)).astype(int)
        flat = {name: torch.from_numpy(n).to(self._model.device, torch.long)[None] for name, n in inputs.items()}
        with attending(TextAttention(lengths.tolist())):
            hidden: torch.Tensor = self._base(**flat).last_hidden_state[0]
        return hidden

    def _scores(self, row: torch.Tensor) -> torch.Tensor:
        """The scores [1, classes] of a text by the family's own head, which gets one hidden state as all of a text."""
        states = row[None, None]
        pooler = getattr(self._base, "pooler", None)
        known = BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooler(states) if pooler else None)
        base = self._base
        base.forward = lambda *args, **named: known
        try:
            scores: torch.Tensor = self._model(torch.zeros(1, 1, dtype=torch.long, device=row.device)).logits
        finally:
            del base.forward
        return scores


class TextAttention:
    """Attention of one iteration: each text by itself, with the mask that the model asks for. See AttentionBackend."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self._masks: dict[tuple[int | None, int], torch.Tensor | None] = {}

    def attend(self, call: AttentionCall) -> torch.Tensor:
        asked = call.extras["attention_mask"]
        grouped, outputs, first = call.query.shape[1] != call.key.shape[1], [], 0
        for length in self._lengths:
            text = slice(first, first := first + length)
            query, key, value = (part[text].transpose(0, 1)[None] for part in (call.query, call.key, call.value))
            mask = self._mask(asked, length)
            output = scaled_dot_product_attention(query, key, value, mask, scale=call.scaling, enable_gqa=grouped)
            outputs.append(output[0])
        return torch.cat(outputs, 1).transpose(0, 1)

    def _mask(self, asked: Any, length: int) -> torch.Tensor | None:
        """The mask [length, length]; None if it shows everything."""
        if not isinstance(asked, MaskRequest):
            return None
        key = asked.local_size, length
        if key not in self._masks:
            positions = torch.arange(length, device=asked.device)
            shown = asked.function(0, 0, positions[:, None], positions[None, :]).expand(length, length)
            self._masks[key] = None if bool(shown.all()) else shown
        return self._masks[key]


def load_encoder(folder: Path, pooling: Pooling, dtype: torch.dtype, device: torch.device, path: str) -> StockEncoder:
    """The encoder in `folder`. Raises ModelError for one that cannot run on a flat batch."""
    transformers_logging.disable_progress_bar()
    auto: Any = AutoModelForSequenceClassification if pooling.kind == "classify" else AutoModel
    try:
        model, found = auto.from_pretrained(folder, dtype=dtype, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder} holds no encoder that transformers can read: {error}") from error
    if missing := sorted(name for name in found["missing_keys"] if MAY_BE_ABSENT not in name):
        raise ModelError(f"{folder}: {describe_missing(missing)}")
    encoder = StockEncoder(model.to(device).eval(), pooling, path)
    _check(encoder, model)
    return encoder


def make_encoder(config: Any, tensors: Tensors, pooling: Pooling, device: torch.device) -> StockEncoder:
    """An encoder of this config with weights from `tensors`, in float32."""
    with device:
        model = AutoModel.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors.read(name))
    model.set_attn_implementation(PROBE)
    return StockEncoder(model.eval(), pooling, "sdpa")


def _check(encoder: StockEncoder, model: Any) -> None:
    """Make sure that two texts in a flat batch have the hidden states that the model's own attention gives to each
    alone. Raises ModelError."""
    kind, most = model.config.model_type, max(LENGTHS)
    ids = np.arange(5, 5 + sum(LENGTHS), dtype=np.int32) % model.config.vocab_size  # behind those of padding
    with torch.inference_mode():
        try:
            alone = [encoder.hidden(part, np.array([0, len(part)]), [0]) for part in (ids[: LENGTHS[0]], ids[-most:])]
            own = [model.base_model(torch.from_numpy(ids[-most:])[None].long().to(model.device)).last_hidden_state[0]]
            model.set_attn_implementation(PROBE)
            flat = encoder.hidden(ids, np.array([0, LENGTHS[0], len(ids)]), [0, 0])
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError, LookupError) as error:
            raise ModelError(f"{kind}: cannot be run on a flat batch: {error}") from error
    tolerance = TOLERANCE if model.dtype == torch.float32 else 100 * TOLERANCE
    for one, other in [(flat, torch.cat(alone)), (alone[1], own[0])]:
        if not bool((one - other).abs().max() <= tolerance * other.abs().max()):
            raise ModelError(f"{kind}: its layers mix the tokens of different texts, so it is not served")
