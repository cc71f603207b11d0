"""Engines of the CUDA backend on the CPU, whole and as ranks, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import interpreter  # noqa: F401  as conftest.py, for ranks, which are processes of their own
import torch

from services.engine.adapters import Adapters
from services.engine.backends.cuda.decoder import CudaDecoder
from services.engine.backends.cuda.layers import CudaSetup
from services.engine.backends.cuda.plan import Tiles
from services.engine.batch.kv_cache import KVCache
from services.engine.decoder import Decoder
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.families.registry import open_weights, spec_of
from services.engine.parallel.layout import Layout, Partition
from services.engine.sampling.sampler import Sampler
from services.engine.settings import NO_TOKEN, EngineSettings, choose_block_size
from services.engine.spec import DecoderSpec
from services.engine.startup.loading import adapter_reader
from services.engine.weights.folder import open_folder
from services.engine.weights.tensors import Tensors
from services.messages import EngineFigures

CPU = torch.device("cpu")
BLOCKS = 64
MOST_RANK = 40  # of adapters


def make_engine(folder: Path, block_size: int, files: Path | None = None) -> Engine:
    """`files`: where adapters are, if they are served."""
    settings = EngineSettings("cpu", block_size=block_size, adapters=files, max_lora_rank=MOST_RANK)
    return make_rank(folder, settings, Layout())


def make_rank(folder: Path, settings: EngineSettings, layout: Layout) -> Engine:
    """See RankProcesses."""
    setup = make_setup(folder, layout.partition)
    if not settings.adapters:
        return make(CudaDecoder(setup, layout), setup.spec, choose_block_size(settings))
    decoder = CudaDecoder(replace(setup, most_rank=settings.max_lora_rank), layout)
    assert decoder.adapters
    adapters = Adapters(decoder.adapters, adapter_reader(folder, settings, 256, layout), settings.adapter_bytes)
    return make(decoder, setup.spec, choose_block_size(settings), adapters)


def make_setup(folder: Path, partition: Partition, tensors: Tensors | None = None) -> CudaSetup:
    spec = spec_of(load_config(folder))
    assert spec
    weights = open_weights(spec, tensors or open_folder(folder), partition)
    return CudaSetup(spec, weights, torch.float32, CPU, 256, lambda dim: Tiles(rows=16, keys=16, split=32))


def make(decoder: Decoder, spec: DecoderSpec, block_size: int, adapters: Adapters | None = None) -> Engine:
    cache = KVCache(decoder.layers, BLOCKS, block_size, decoder.cache_dtype, CPU)
    decoder.bind(cache)
    figures = EngineFigures("tiny", 256, BLOCKS, block_size, spec.vocab, decoder.path)
    sampler = Sampler(frozenset(), figures.vocab_size)
    return Engine(decoder, cache, figures, sampler, NO_TOKEN, adapters=adapters)
