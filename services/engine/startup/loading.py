"""Chooses the backend of a model and loads it: the fast path for its families, else transformers' own layers."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from services.adapters import peft
from services.adapters.store import folder_of
from services.engine.adapters import Adapter
from services.engine.backends.cpu.build import NoKernels, kernels
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packing import GROUP_STEP, CpuSetup, pack_model
from services.engine.batch.buffers import Allocate, zeros
from services.engine.decoder import Decoder
from services.engine.families.decoder_weights import DecoderWeights
from services.engine.families.fit import open_fitted
from services.engine.families.heads import head_of
from services.engine.families.low_rank import read_layer
from services.engine.families.registry import WHOLE, load_spec, open_weights
from services.engine.parallel.decoder import RankDecoder
from services.engine.parallel.layout import Layout, Partition
from services.engine.sampling.search import CompiledSearch
from services.engine.settings import EngineSettings
from services.engine.spec import DecoderSpec
from services.engine.startup import devices
from services.engine.weights.description import describe_kept
from services.engine.weights.folder import open_folder
from services.engine.weights.tensors import Tensors
from services.errors import SettingsError
from services.models.linears import load_linears
from services.models.pooling import pooling_of

FALLBACK = "fallback"  # in a decoder's path: the model has the fast path, which does not run here
ONE_PROCESS = Layout()

log = logging.getLogger(__name__)


def load_decoder(
    folder: Path,
    settings: EngineSettings,
    length: int,
    layout: Layout = ONE_PROCESS,
    tensors: Tensors | None = None,
    allocate: Allocate = zeros,
) -> Decoder:
    """The model in `folder`, for requests of up to `length` tokens; with `tensors`, its weights come from there. Ranks
    of several read only their part of the weights. The fast path's matrices lie in memory of `allocate`.

    Raises ModelError for a model that cannot be read or served, SettingsError for settings that do not fit the model or
    this machine.
    """
    if layout.size > 1:
        spec = _spec_of_ranks(folder, settings)
        layout.part_of(spec)  # raises before anything is read
        return load_fast(spec, tensors or folder, settings, length, layout, allocate)
    device = devices.choose_device(settings)
    devices.forbid_shortcuts()
    dtype = devices.choose_dtype(settings, device)
    _check_formats(settings, device)
    path = "sdpa" if device.type == "cpu" else "sdpa batch-dependent"
    if whole := fast_path_spec(folder, settings):
        try:
            return load_fast(whole, tensors or folder, settings, length, allocate=allocate)
        except NoKernels as error:
            log.warning("transformers' own layers run, several times slower: %s", error)
            path = f"{path} {FALLBACK}"
    _check_stock(settings)
    pooling = pooling_of(folder)
    if pooling and pooling.encoder:
        from services.engine.backends.stock.encoder import load_encoder

        return load_encoder(folder, pooling, dtype, device, path)
    # transformers' layers take seconds to import, and the fast path does not use them
    from services.engine.backends.stock.loading import load_stock

    return load_stock(folder, dtype, device, length, tensors, path)


def adapter_reader(
    folder: Path, settings: EngineSettings, length: int, layout: Layout, tensors: Tensors | None = None
) -> Callable[[str], Adapter]:
    """What reads the adapter whose content has a digest, for a rank of the model in `folder`, and raises ValueError.
    The arguments are those of `load_decoder`. Raises ModelError."""
    files = settings.adapters
    assert files
    linears = load_linears(folder, settings.cache_dir)
    spec = fast_path_spec(folder, settings) if layout.size > 1 or runs_on_fast_path(folder, settings) else None
    base = tensors or open_fitted(folder, settings.cache_dir) if spec else None

    def read(digest: str) -> Adapter:
        parts = peft.read(folder_of(files, digest), linears, settings.max_lora_rank)
        if spec is None or base is None:
            return Adapter(parts)
        whole = spec.for_length(length)
        layers = range(*layout.layers(spec.layers))
        return Adapter(parts, [read_layer(whole, i, parts, linears, base, layout.partition) for i in layers])

    return read


def runs_on_fast_path(folder: Path, settings: EngineSettings) -> bool:
    """Whether `load_decoder` returns a decoder of the fast path. Raises ModelError."""
    if not fast_path_spec(folder, settings):
        return False
    try:
        need_kernels(settings, devices.choose_device(settings))
    except NoKernels:
        return False
    return True


def load_fast(
    spec: DecoderSpec,
    source: Path | Tensors,
    settings: EngineSettings,
    length: int,
    layout: Layout = ONE_PROCESS,
    allocate: Allocate = zeros,
) -> RankDecoder:
    """A decoder of the fast path with weights from `source`. Raises NoKernels."""
    device = devices.choose_device(settings)
    need_kernels(settings, device)
    devices.forbid_shortcuts()
    devices.keep_kernels(settings.cache_dir)
    spec = spec.for_length(length)
    weights = open_model(spec, source, settings, layout.partition)
    dtype = devices.choose_dtype(settings, device)
    cached = devices.choose_cache_dtype(settings, dtype)
    if device.type == "cpu":
        library, kept = kernels(settings.cache_dir), torch.int8 if settings.weights == "int8" else dtype
        if spec.both_ways:  # its keys are of one iteration, in which attention on tiles would see only the ones before
            cached = torch.float32
        setup = CpuSetup(library, spec, weights, dtype, kept, cached, torch.get_num_threads(), length, allocate)
        return CpuDecoder(library, pack_model(setup, layout))
    from services.engine.backends.cuda.decoder import CudaDecoder  # Triton may be absent
    from services.engine.backends.cuda.layers import CudaSetup
    from services.engine.backends.cuda.plan import Tiles

    tiles = partial(Tiles.fitting, dtype)
    most_rank = settings.max_lora_rank if settings.adapters and not spec.both_ways else 0
    return CudaDecoder(CudaSetup(spec, weights, dtype, device, length, tiles, cached, allocate, most_rank), layout)


def open_model(
    spec: DecoderSpec, source: Path | Tensors, settings: EngineSettings, partition: Partition = WHOLE
) -> DecoderWeights:
    """The weights of a model with this spec, in the form in which the fast path executes them. Raises ModelError, also
    for a folder whose weights do not fit its config."""
    if isinstance(source, Path):
        folder = source
        stored = settings.weights == "auto"
        source = open_folder(folder, stored) if spec.both_ways else open_fitted(folder, settings.cache_dir, stored)
        weights = open_weights(spec, source, partition)
        if pooling := pooling_of(folder):
            weights.head = head_of(source, weights.vocabulary_name, pooling, spec.hidden, folder)
        return weights
    weights = open_weights(spec, source, partition)
    if spec.both_ways:
        weights.head = torch.eye(spec.hidden)
    return weights


def describe_weights(folder: Path, settings: EngineSettings, decoder: Decoder) -> str:
    """How `decoder`, loaded from `folder` with these settings, keeps its weights: a line for people."""
    checkpoint = open_folder(folder, as_stored=True)
    quantization = checkpoint.quantization
    names = decoder.as_stored or dict.fromkeys(quantization.weights, False)
    sizes = {form.size for name, form in checkpoint.groups.items() if not names.get(name)}
    kept, why = str(decoder.weight_dtype).removeprefix("torch."), "fused with others, or reordered"
    if settings.weights != "auto":
        why = f"--weights {settings.weights}"
    elif not decoder.as_stored:
        why = "transformers' layers execute numbers"
    elif any(size % GROUP_STEP for size in sizes):
        why = f"groups that are no multiple of {GROUP_STEP} are not executed"
    elif devices.choose_device(settings).type == "cuda":
        why = "the GPU's kernels do not execute these codes"
    as_stored = (name for name, stored in names.items() if stored)
    return describe_kept(quantization, as_stored, names, why, kept, decoder.memory)


def check_ranks(folder: Path, settings: EngineSettings) -> None:
    """Make sure that the model can be split over the ranks of these settings, without reading weights. Raises
    SettingsError."""
    Layout(settings.tp, settings.pp).part_of(_spec_of_ranks(folder, settings))


def check_settings(folder: Path, settings: EngineSettings) -> None:
    """Make sure that settings which only the fast path has can be served, without reading weights. Raises
    SettingsError."""
    if settings.tp * settings.pp > 1:
        check_ranks(folder, settings)
    elif settings.weights == "int8" or settings.kv_cache_dtype != "auto" or settings.batch_invariant:
        _check_formats(settings, devices.choose_device(settings))
        if fast_path_spec(folder, settings) is None:
            _check_stock(settings)


def _spec_of_ranks(folder: Path, settings: EngineSettings) -> DecoderSpec:
    needed = f"tp={settings.tp}, pp={settings.pp}: ranks are served on the fast path only"
    if pooling_of(folder):
        raise SettingsError(f"tp={settings.tp}, pp={settings.pp}: a model that makes vectors is served by one process")
    spec = fast_path_spec(folder, settings)
    if spec is None:
        raise SettingsError(f"{needed}, which {folder.name} is not on here")
    device = devices.choose_device(settings)
    _check_formats(settings, device)
    try:
        need_kernels(settings, device)
    except NoKernels as error:
        raise SettingsError(f"{needed}: {error}") from error
    return spec


def fast_path_spec(folder: Path, settings: EngineSettings) -> DecoderSpec | None:
    """The spec of the model in `folder`; None if the fast path does not run it on this device. Raises ModelError,
    SettingsError."""
    pooling = pooling_of(folder)
    encoder = pooling is not None and pooling.encoder
    if not settings.fast_path or (pooling and encoder and pooling.kind == "classify"):  # heads of several products
        return None
    spec = load_spec(folder, settings.cache_dir, encoder)
    if spec and pooling:
        spec = replace(spec, logits_scale=1.0, logits_soft_cap=0.0)
    on_cuda = devices.choose_device(settings).type == "cuda"
    return None if spec and on_cuda and spec.lacks_on_cuda else spec


def need_kernels(settings: EngineSettings, device: torch.device) -> None:
    """Load the fast path's kernels for a device. Raises NoKernels if there are none here, or none that can be
    trusted."""
    if settings.fast_path_fault:
        raise NoKernels(settings.fast_path_fault)
    if device.type == "cpu":
        kernels(settings.cache_dir)
        return
    try:
        importlib.import_module("services.engine.backends.cuda.decoder")
    except ImportError as error:
        raise NoKernels(f"there is no Triton: {error}") from error


def search_of(settings: EngineSettings, device: torch.device) -> CompiledSearch | None:
    """What searches logits on a CPU, if there are kernels."""
    if settings.fast_path and device.type == "cpu":
        with contextlib.suppress(NoKernels):
            need_kernels(settings, device)
            return CompiledSearch(kernels(settings.cache_dir), torch.get_num_threads())
    return None


def _check_stock(settings: EngineSettings) -> None:
    """Refuse settings that transformers' own layers do not have. Raises SettingsError."""
    needed = "is served on the fast path only, which this model is not on here"
    if settings.weights == "int8":
        raise SettingsError(f"weights={settings.weights} {needed}")
    dtype = devices.choose_dtype(settings, devices.choose_device(settings))
    if devices.choose_cache_dtype(settings, dtype) != dtype:
        raise SettingsError(f"kv_cache_dtype={settings.kv_cache_dtype} {needed}; use auto")
    if settings.batch_invariant:
        raise SettingsError(f"batch_invariant {needed}")


def _check_formats(settings: EngineSettings, device: torch.device) -> None:
    if device.type == "cpu":
        return
    if settings.weights == "int8":
        raise SettingsError(f"weights={settings.weights} is served on a CPU only")
    dtype = devices.choose_dtype(settings, device)
    if devices.choose_cache_dtype(settings, dtype) not in (dtype, torch.int8):
        name = str(dtype).removeprefix("torch.")
        asked = f"kv_cache_dtype={settings.kv_cache_dtype} with dtype={name}"
        raise SettingsError(f"{asked} is served on a CPU only; use auto, which is {name} here, or int8_per_token_head")
