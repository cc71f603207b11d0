"""Random layers of a model's shapes on the lean path and on transformers' own: how far apart are their logits?"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from services.engine.backends.stock.decoder import StockDecoder
from services.engine.backends.stock.loading import make_model
from services.engine.backends.stock.support import check_attention
from services.engine.batch.flat_batch import pack
from services.engine.batch.kv_cache import KVCache
from services.engine.batch.request_state import Row
from services.engine.decoder import Decoder
from services.engine.families.config import load_config
from services.engine.families.random_tensors import RandomTensors
from services.engine.families.registry import spec_of
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights
from services.engine.parallel.shard import Shard
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading
from services.models.info import ModelInfo
from services.requests import SamplingParams

LAYERS = 2
WIDEST = 2048  # rows of the vocabulary, and what remains of its real size over a multiple of TILE
TILE = 256
PROMPTS = (1, 5, 33, 300)  # tokens: below and above the sizes of blocks and of the tiles of products and attention
CHUNK = 20  # of the third prompt, which comes in two
COMPANY = 16  # short requests that join the last iterations, so that increments fill more than one tile
INCREMENTS = 4
SEED = 7


def trial(folder: Path, settings: EngineSettings) -> float:
    """The largest difference of two logits, in units of the root mean square of the row it is in; NaN where one of
    them is.

    Transformers' layers compute in float32, with weights as they are stored and rounded to the dtype that is served.
    Raises whatever the lean path raises.
    """
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    length = min(ModelInfo.load(folder, settings.cache_dir).max_model_len, max(PROMPTS) + COMPANY)
    full = loading.lean_spec(folder, settings)
    assert full is not None, f"{folder.name} has no lean path"
    config = _shortened(load_config(folder))
    spec = spec_of(config)
    assert spec is not None
    stored = DecoderWeights(full, folder, Shard()).stored
    tensors = RandomTensors(config, stored if dtype == torch.float32 else dtype, device, spec.hidden**-0.5)
    lean = loading.load_lean(spec, tensors, settings, length)
    model = make_model(config, tensors, torch.float32, device)
    stock = StockDecoder(model, check_attention(model, spec.layers))
    with torch.inference_mode():
        return compare(lean, stock, settings.block_size, length, spec, device)


def _shortened(config: Any) -> Any:
    """The config of a model with fewer layers of the same shapes, and fewer words."""
    config.num_hidden_layers = LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:LAYERS]
    config.vocab_size = min(config.vocab_size, WIDEST + config.vocab_size % TILE)
    config.pad_token_id = None
    return config


def compare(
    lean: Decoder, stock: Decoder, block_size: int, length: int, spec: DecoderSpec, device: torch.device
) -> float:
    """As `trial`, of two decoders with the same weights."""
    rows = _rows(block_size, length, spec.vocab)
    for decoder in (lean, stock):
        blocks = sum(len(row.blocks) for row in rows)
        decoder.bind(KVCache(decoder.layers, blocks, block_size, decoder.cache_dtype, device))
    worst = torch.zeros((), device=device)
    for scheduled in _iterations(rows, spec.vocab):
        ours, theirs = (decoder.forward(pack(scheduled, block_size)) for decoder in (lean, stock))
        assert ours is not None
        assert theirs is not None
        scale = theirs.square().mean(-1, keepdim=True).sqrt()
        worst = torch.maximum(worst, ((ours - theirs) / scale).abs().max())  # NaN wins
        for row, count in scheduled:
            row.num_computed_tokens += count
    return float(worst)


def _rows(block_size: int, length: int, vocab: int) -> list[Row]:
    """Requests whose blocks lie scattered."""
    drawn = torch.Generator().manual_seed(SEED)
    lengths = [min(prompt, length - COMPANY) for prompt in PROMPTS] + [1 + i % 3 for i in range(COMPANY)]
    room = [-(-(count + COMPANY) // block_size) for count in lengths]
    order = iter(torch.randperm(sum(room), generator=drawn).tolist())
    rows = []
    for i, (count, blocks) in enumerate(zip(lengths, room, strict=True)):
        prompt = torch.randint(vocab, (count,), generator=drawn).tolist()
        row = Row(f"proof/{i}", prompt, count, SamplingParams(COMPANY))
        row.blocks = array("i", [next(order) for _ in range(blocks)])
        rows.append(row)
    return rows


def _iterations(rows: list[Row], vocab: int) -> Iterator[list[tuple[Row, int]]]:
    """Prompts, a chunk of one, increments beside a prompt, increments alone, and many of them."""
    drawn = torch.Generator().manual_seed(SEED)

    def rest(some: list[Row]) -> list[tuple[Row, int]]:
        """All that is left of these; those with nothing left get a token first."""
        for row in some:
            if row.num_computed_tokens == len(row.token_ids):
                row.token_ids.append(int(torch.randint(vocab, (1,), generator=drawn)))
        return [(row, len(row.token_ids) - row.num_computed_tokens) for row in some]

    few = rows[: len(PROMPTS)]
    yield [*rest(few[:2]), (few[2], min(CHUNK, len(few[2].token_ids) - 1))]
    for _ in range(1 + INCREMENTS):
        yield rest(few)
    for _ in range(2):
        yield rest(rows)
