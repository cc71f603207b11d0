"""Engines of the CUDA backend on the CPU, whole and as ranks, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import interpreter  # noqa: F401  as conftest.py, for ranks, which are processes of their own
import torch

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
from services.engine.settings import DeadlyToken, EngineSettings, choose_block_size
from services.engine.spec import DecoderSpec
from services.engine.weights.tensors import Tensors
from services.messages import EngineFigures

CPU = torch.device("cpu")
BLOCKS = 64


def make_engine(folder: Path, block_size: int) -> Engine:
    setup = make_setup(folder, Partition())
    return make(CudaDecoder(setup), setup.spec, block_size)


def make_rank(folder: Path, settings: EngineSettings, layout: Layout) -> Engine:
    """See RankProcesses."""
    setup = make_setup(folder, layout.partition)
    return make(CudaDecoder(setup, layout), setup.spec, choose_block_size(settings))


def make_setup(folder: Path, partition: Partition, tensors: Tensors | None = None) -> CudaSetup:
    spec = spec_of(load_config(folder))
    assert spec
    weights = open_weights(spec, tensors or folder, partition)
    return CudaSetup(spec, weights, torch.float32, CPU, 256, lambda dim: Tiles(rows=16, keys=16, split=32))


def make(decoder: Decoder, spec: DecoderSpec, block_size: int) -> Engine:
    cache = KVCache(decoder.layers, BLOCKS, block_size, decoder.cache_dtype, CPU)
    decoder.bind(cache)
    figures = EngineFigures("tiny", 256, BLOCKS, block_size, spec.vocab, decoder.path)
    return Engine(decoder, cache, figures, Sampler(frozenset(), figures.vocab_size), DeadlyToken(-1))
