"""A transformers folder as a model that runs flat batches."""

from __future__ import annotations

import contextlib
import importlib
import logging
from pathlib import Path

import torch

from services.engine.backends.cpu.build import NoKernels, kernels
from services.engine.backends.cpu.decoder import NativeDecoder
from services.engine.backends.cpu.search import NativeSearch
from services.engine.backends.cpu.setup import NativeSetup
from services.engine.backends.cuda.setup import CudaSetup
from services.engine.backends.cuda.tiles import Tiles
from services.engine.decoder import Decoder
from services.engine.families.known_spec import known_spec
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights, Tensors
from services.engine.parallel.decoder import RankDecoder
from services.engine.parallel.layout import Layout
from services.engine.parallel.native_part import NativePart
from services.engine.parallel.shard import Shard
from services.engine.sampling.candidates import PlainSearch, Search
from services.engine.settings import EngineSettings
from services.engine.startup import devices
from services.errors import SettingsError

FALLBACK = "fallback"  # in a path: the lean one is for this model, and does not run here

log = logging.getLogger(__name__)


def load_rank(folder: Path, settings: EngineSettings, length: int, layout: Layout) -> RankDecoder:
    """One rank's part of the model in `folder`; nothing else of it is read.

    Raises SettingsError for a model or a machine without the lean path, or that cannot be split so.
    """
    spec = _spec_of_ranks(folder, settings)
    layout.part_of(spec)  # before anything is read
    weights = DecoderWeights(spec, folder, layout.shard)
    if devices.choose_device(settings).type == "cpu":
        return RankDecoder(NativePart(native_setup(spec, weights, settings, length), layout), spec, layout)
    from services.engine.parallel.cuda_part import CudaPart  # there need be no Triton

    return RankDecoder(CudaPart(_cuda_setup(spec, weights, settings, length), layout), spec, layout)


def check_ranks(folder: Path, settings: EngineSettings) -> None:
    """Raises SettingsError where `load_rank` would, without weights."""
    Layout(settings.tp, settings.pp).part_of(_spec_of_ranks(folder, settings))


def _spec_of_ranks(folder: Path, settings: EngineSettings) -> DecoderSpec:
    needed = f"tp={settings.tp}, pp={settings.pp}: ranks are served on the lean path only"
    spec = lean_spec(folder, settings)
    if spec is None:
        raise SettingsError(f"{needed}, which {folder.name} is not on here")
    device = devices.choose_device(settings)
    _check_weights(settings, device)
    try:
        need_kernels(settings, device)
    except NoKernels as error:
        raise SettingsError(f"{needed}: {error}") from error
    return spec


def need_kernels(settings: EngineSettings, device: torch.device) -> None:
    """Load what the lean path runs on a device. Raises NoKernels where there is none here, or none to be trusted."""
    if settings.lean_fault:
        raise NoKernels(settings.lean_fault)
    if device.type == "cpu":
        kernels(settings.cache_dir)
        return
    try:
        importlib.import_module("services.engine.backends.cuda.decoder")
    except ImportError as error:
        raise NoKernels(f"there is no Triton: {error}") from error


def search_of(settings: EngineSettings, device: torch.device) -> Search:
    """How the vocabulary is looked through on a CPU: compiled, where the lean path's kernels are."""
    if settings.lean and device.type == "cpu":
        with contextlib.suppress(NoKernels):
            need_kernels(settings, device)
            return NativeSearch(kernels(settings.cache_dir), torch.get_num_threads())
    return PlainSearch()


def _check_weights(settings: EngineSettings, device: torch.device) -> None:
    if settings.weights != "dtype" and device.type != "cpu":
        raise SettingsError(f"weights={settings.weights} is served on a CPU only")


def load_decoder(folder: Path, settings: EngineSettings, length: int, tensors: Tensors | None = None) -> Decoder:
    """The model in `folder`, or of its config and these tensors, on the lean path where it has one, else transformers'
    own.

    Raises ModelError for a model that cannot be read or served, SettingsError for settings that only the other way has.
    """
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    _check_weights(settings, device)
    spec = lean_spec(folder, settings)
    path = "sdpa"
    if spec:
        try:
            return load_lean(spec, tensors or folder, settings, length)
        except NoKernels as error:
            log.warning("transformers' own layers run, several times slower: %s", error)
            path = f"sdpa {FALLBACK}"
    needed = "is served on the lean path only, which this model is not on here"
    if settings.weights != "dtype":
        raise SettingsError(f"weights={settings.weights} {needed}")
    if settings.batch_invariant:
        raise SettingsError(f"batch_invariant {needed}")
    # transformers' layers take seconds to import, and the lean path has no use for them
    from services.engine.backends.stock.loading import load_stock

    return load_stock(folder, dtype, device, tensors, path)


def load_lean(spec: DecoderSpec, source: Path | Tensors, settings: EngineSettings, length: int) -> Decoder:
    """A decoder of the lean path, of weights from `source`. Raises NoKernels."""
    device = devices.choose_device(settings)
    need_kernels(settings, device)
    weights = DecoderWeights(spec, source, Shard())
    if device.type == "cpu":
        return NativeDecoder(native_setup(spec, weights, settings, length))
    from services.engine.backends.cuda.decoder import CudaDecoder  # there need be no Triton

    return CudaDecoder(_cuda_setup(spec, weights, settings, length))


def native_setup(spec: DecoderSpec, weights: DecoderWeights, settings: EngineSettings, length: int) -> NativeSetup:
    """For a CPU. Raises NoKernels."""
    dtype = devices.choose_dtype(settings, devices.choose_device(settings))
    kept = torch.int8 if settings.weights == "int8" else dtype
    library = kernels(settings.cache_dir)
    return NativeSetup(library, spec, weights, kept, dtype, torch.get_num_threads(), length)


def _cuda_setup(spec: DecoderSpec, weights: DecoderWeights, settings: EngineSettings, length: int) -> CudaSetup:
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    tiles = Tiles.fitting(dtype, spec.head_dim)
    return CudaSetup(spec, weights, dtype, device, length, settings.batch_invariant, tiles)


def lean_spec(folder: Path, settings: EngineSettings) -> DecoderSpec | None:
    """What the lean path runs of the model in `folder`; None where it is not to. Raises ModelError."""
    return known_spec(folder, settings.cache_dir) if settings.lean else None


def choose_length(own: int, asked: int) -> int:
    """The longest request in tokens: `asked`, or the model's own. Raises SettingsError where it is longer."""
    if asked > own:
        raise SettingsError(f"max_model_len={asked} is over the model's {own}")
    return asked or own
