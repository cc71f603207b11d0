"""A trial: how far are the fast path's logits from those of transformers' layers, for random layers of a model's
shapes?"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.adapters.peft import LowRank
from services.engine.adapters import Adapter
from services.engine.backends.stock.check import check_attention
from services.engine.backends.stock.decoder import StockDecoder
from services.engine.backends.stock.encoder import make_encoder
from services.engine.backends.stock.loading import make_model
from services.engine.backends.stock.positions import place_by_position
from services.engine.batch.flat_batch import pack_batch
from services.engine.batch.kv_cache import KVCache
from services.engine.batch.request_state import RequestState
from services.engine.decoder import Decoder
from services.engine.families.config import load_config
from services.engine.families.linears import read_by_family, shapes_of
from services.engine.families.llama import windows_of
from services.engine.families.low_rank import read_layer
from services.engine.families.registry import spec_of
from services.engine.settings import EngineSettings, choose_block_size
from services.engine.spec import DecoderSpec
from services.engine.startup import devices, loading
from services.engine.weights.random_tensors import RandomTensors
from services.engine.weights.tensors import Tensors
from services.models.info import ModelInfo
from services.models.linears import LinearShape
from services.models.pooling import pooling_of
from services.requests import SamplingParams

LAYERS = 2
WIDEST = 2048  # rows of the vocabulary, plus the remainder of its real size by TILE
TILE = 256
WINDOW = 70  # tokens at most: shorter than the longest prompt, and no multiple of a tile
PROMPTS = (1, 5, 33, 300)  # tokens: below and above the sizes of blocks, and of the tiles of products and attention
MANY_SPLITS = 1000  # tokens of one more on a GPU, whose increments several programs compute and one merges
CHUNK = 20  # tokens of the third prompt's first chunk
SHORT_REQUESTS = 16  # they join the last iterations, so that increments fill more than one tile
INCREMENTS = 4
ADAPTERS = {"a": 3, "b": 40}  # ranks, below and above those of a tile
SEED = 7


def trial(folder: Path, settings: EngineSettings) -> float:
    """The largest difference of two logits, in units of the root mean square of their row; NaN if a logit is.

    transformers' layers compute in float32, with the stored weights rounded to the dtype that is served. Raises
    whatever the fast path raises."""
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    longest = ModelInfo.load(folder, settings.cache_dir).max_model_len
    prompts = PROMPTS if device.type == "cpu" else (*PROMPTS, MANY_SPLITS)
    length = min(longest, max(prompts) + SHORT_REQUESTS)
    full = loading.fast_path_spec(folder, settings)
    assert full is not None, f"{folder.name} has no fast path"
    if full.both_ways:
        return _encoder_trial(folder, settings, full, dtype)
    exact = dtype == devices.choose_cache_dtype(settings, dtype) == torch.float32 and settings.weights != "int8"
    config = _shortened(load_config(folder), exact)
    spec = spec_of(config)
    assert spec is not None
    spec = spec.for_length(longest)
    weights = loading.open_model(full, folder, settings)
    kept = weights.stored if dtype == torch.float32 else dtype
    # The scores of random queries and keys must not be so large that a rounding chooses another key. Where the spec
    # does not scale them, the norms of a trained model's queries do.
    query_norms = min(1.0, spec.head_dim**-0.5 / spec.scaling_of(spec.head_dim))
    tensors = RandomTensors(config, kept, device, spec.hidden**-0.5, weights.groups, query_norms)
    fast = loading.load_fast(spec, tensors, settings, length)
    model = make_model(config, tensors, torch.float32, device)
    place_by_position(model, longest)
    stock = StockDecoder(model, check_attention(model, spec.layers))
    found, block_size = [], choose_block_size(settings)
    with torch.inference_mode():
        found.append(compare(fast, stock, block_size, length, spec, device, prompts))
        if settings.adapters and fast.adapters:
            base = RandomTensors(config, kept, torch.device("cpu"), groups=weights.groups)
            for digest, rank in ADAPTERS.items():
                adapter = _random_adapter(spec, base, shapes_of(model), min(rank, settings.max_lora_rank))
                fast.adapters.put(digest, adapter)
                stock.adapters.put(digest, adapter)
            found.append(compare(fast, stock, block_size, length, spec, device, prompts, ("", *ADAPTERS)))
    return max(found, key=lambda difference: (difference != difference, difference))  # NaN wins


def _random_adapter(spec: DecoderSpec, base: Tensors, linears: dict[str, LinearShape], rank: int) -> Adapter:
    """Changes all linear layers that it can, each by half of what a weight gives."""
    numbers = np.random.default_rng(SEED + rank)

    def part(shape: LinearShape) -> LowRank:
        a, b = (numbers.standard_normal(size, np.float32) for size in ((rank, shape.inputs), (shape.outputs, rank)))
        return LowRank(a, b, 0.5 * (rank * shape.inputs) ** -0.5)

    parts = {name: part(linears[name]) for name in sorted(read_by_family(spec, base, linears))}
    return Adapter(parts, [read_layer(spec, i, parts, linears, base) for i in range(spec.layers)])


def _encoder_trial(folder: Path, settings: EngineSettings, full: DecoderSpec, dtype: torch.dtype) -> float:
    """The largest difference of two hidden states of an encoder, of texts alone in a batch and of many together; see
    `trial`."""
    config, pooling = load_config(folder, encoder=True), pooling_of(folder)
    assert pooling is not None
    config.num_hidden_layers, config.vocab_size = LAYERS, min(config.vocab_size, WIDEST)
    spec, device = spec_of(config, encoder=True), devices.choose_device(settings)
    assert spec is not None
    length = ModelInfo.load(folder, settings.cache_dir).max_model_len
    kept = loading.open_model(full, folder, settings).stored if dtype == torch.float32 else dtype
    tensors = RandomTensors(config, kept, device, spec.hidden**-0.5, encoder=True)
    fast = loading.load_fast(spec, tensors, settings, length)
    stock = make_encoder(config, tensors, pooling, device)
    drawn = torch.Generator().manual_seed(SEED)
    states = []
    for i, count in enumerate([min(prompt, length) for prompt in (*PROMPTS, *PROMPTS)]):
        text = torch.randint(spec.vocab, (count,), generator=drawn).tolist()
        states.append(RequestState(f"proof/{i}", text, count, SamplingParams(1, second_text=count // 2)))
        states[-1].blocks = array("i", [i])
    fast.bind(KVCache(fast.layers, len(states), max(PROMPTS), fast.cache_dtype, device))
    worst = torch.zeros((), device=device)
    with torch.inference_mode():
        for some in (states[:1], states[-1:], states):
            batch = pack_batch([(state, state.num_prompt_tokens) for state in some], max(PROMPTS), method="mean")
            worst = torch.maximum(worst, _difference(fast.forward(batch), stock.forward(batch)))
    return float(worst)


def _difference(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> torch.Tensor:
    """The largest difference, in units of the root mean square of its row; NaN if there is one."""
    assert ours is not None
    assert theirs is not None
    return ((ours - theirs) / theirs.square().mean(-1, keepdim=True).sqrt()).abs().max()


def _shortened(config: Any, exact: bool) -> Any:
    """The config with fewer layers of the same shapes, of each type if there are several; with a shorter window, a
    smaller vocabulary and fewer experts. If layers attend to the keys of others, half of them do.

    Unless numbers are `exact`, a token goes to all experts: a rounding may choose others, whose outputs differ."""
    shares = bool(getattr(config, "num_kv_shared_layers", 0))
    layers, fields = (2 * LAYERS if shares else LAYERS), _fields_of_types(config)
    config.num_hidden_layers = layers
    if shares:
        config.num_kv_shared_layers = LAYERS
    if types := getattr(config, "layer_types", None):
        config.layer_types = (list(dict.fromkeys(types)) * layers)[:layers]
    if fields:
        config.per_layer_config = {i: fields[kind] for i, kind in enumerate(config.layer_types)}
    if rotary := getattr(config, "no_rope_layers", None):
        config.no_rope_layers = (list(dict.fromkeys(rotary)) * LAYERS)[:LAYERS]
    if windows_of(config):
        config.sliding_window = min(config.sliding_window, WINDOW)
    if (spec := spec_of(config)) and spec.experts:
        chosen = spec.experts.chosen
        count = "n_routed_experts" if hasattr(config, "n_routed_experts") else "num_experts"
        setattr(config, count, min(spec.experts.count, 2 * chosen) if exact else chosen)
        if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) > 1:
            config.mlp_only_layers, config.decoder_sparse_step = [0], 1  # an MLP, and then experts
        if hasattr(config, "first_k_dense_replace"):
            config.first_k_dense_replace = min(config.first_k_dense_replace, 1)
        if hasattr(config, "moe_layer_start_index"):
            config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval = 1, LAYERS, 1
    config.vocab_size = min(config.vocab_size, WIDEST + config.vocab_size % TILE)
    if getattr(config, "vocab_size_per_layer_input", None):
        config.vocab_size_per_layer_input = config.vocab_size
    config.pad_token_id = None
    return config


def _fields_of_types(config: Any) -> dict[str, dict[str, Any]]:
    """The fields in which types of layers differ, and what each type has; empty if the config has none for layers."""
    if not getattr(config, "is_heterogeneous", False):
        return {}
    own = {kind: config.per_layer_config[kind] for kind in set(config.layer_types)}
    return {kind: {name: getattr(one, name) for name in config.per_layer_attributes} for kind, one in own.items()}


def compare(
    fast: Decoder,
    stock: Decoder,
    block_size: int,
    length: int,
    spec: DecoderSpec,
    device: torch.device,
    prompts: Sequence[int] = PROMPTS,
    adapters: Sequence[str] = ("",),
) -> float:
    """The largest difference of two logits of these decoders, which have the same weights, as `trial` returns it. The
    requests have these adapters in turn."""
    states = _requests(block_size, length, spec.vocab, prompts, adapters)
    for decoder in (fast, stock):
        blocks = sum(len(state.blocks) for state in states)
        decoder.bind(KVCache(decoder.layers, blocks, block_size, decoder.cache_dtype, device))
    worst = torch.zeros((), device=device)
    for each in _iterations(states, len(prompts), spec.vocab):
        scheduled = sorted(each, key=lambda one: one[0].sampling.adapter)  # as in every batch
        ours, theirs = (decoder.forward(pack_batch(scheduled, block_size)) for decoder in (fast, stock))
        worst = torch.maximum(worst, _difference(ours, theirs))  # NaN wins
        for state, count in scheduled:
            state.num_computed_tokens += count
    return float(worst)


def _requests(
    block_size: int, length: int, vocab: int, prompts: Sequence[int], adapters: Sequence[str]
) -> list[RequestState]:
    """Requests whose blocks are scattered."""
    drawn = torch.Generator().manual_seed(SEED)
    lengths = [min(prompt, length - SHORT_REQUESTS) for prompt in prompts] + [1 + i % 3 for i in range(SHORT_REQUESTS)]
    room = [-(-(count + SHORT_REQUESTS) // block_size) for count in lengths]
    order = iter(torch.randperm(sum(room), generator=drawn).tolist())
    states = []
    for i, (count, blocks) in enumerate(zip(lengths, room, strict=True)):
        prompt = torch.randint(vocab, (count,), generator=drawn).tolist()
        sampling = SamplingParams(SHORT_REQUESTS, adapter=adapters[i % len(adapters)])
        state = RequestState(f"proof/{i}", prompt, count, sampling)
        state.blocks = array("i", [next(order) for _ in range(blocks)])
        states.append(state)
    return states


def _iterations(states: list[RequestState], prompts: int, vocab: int) -> Iterator[list[tuple[RequestState, int]]]:
    """Prompts, a chunk of one, increments beside a prompt, increments alone, and many of them."""
    drawn = torch.Generator().manual_seed(SEED)

    def rest(some: list[RequestState]) -> list[tuple[RequestState, int]]:
        """All tokens that these have left; those without any get one first."""
        for state in some:
            if state.num_computed_tokens == len(state.token_ids):
                state.token_ids.append(int(torch.randint(vocab, (1,), generator=drawn)))
        return [(state, len(state.token_ids) - state.num_computed_tokens) for state in some]

    few = states[:prompts]
    yield [*rest(few[:2]), (few[2], min(CHUNK, len(few[2].token_ids) - 1))]
    for _ in range(1 + INCREMENTS):
        yield rest(few)
    for _ in range(2):
        yield rest(states)
