"""What an engine is built from: the settings it reads, its layout of ranks, and the identity of its build."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from services.engine.parallel.layout import Layout
from services.engine.settings import EngineSettings
from services.models.generation import NEUTRAL
from services.models.replaced import Replaced
from services.settings.settings import Settings

# The files, and the folders with source files, on which the tokens and the messages of an engine depend.
SOURCES = (
    "services/adapters",
    "services/engine",
    "services/grammar",
    "services/models",
    "services/text/plain_encoder.py",
    "services/text/token_bytes.py",
    "services/text/tokenizer_config.py",
    "services/text/tokenizer_json.py",
    "services/background.py",
    "services/child_environment.py",
    "services/errors.py",
    "services/messages.py",
    "services/requests.py",
    "services/started.py",
    "services/files.py",
    "services/limits.py",
    "services/memory.py",
    "services/progress.py",
    "services/wire.py",
    "actors/channel.py",
    "actors/engine.py",
    "actors/engine_build.py",
    "actors/engine_record.py",
    "actors/engine_server.py",
    "actors/liveness.py",
    "actors/memory_account.py",
)
SUFFIXES = frozenset({".py", ".h", ".cpp"})


def build_of(settings: Settings, root: Path = Path(__file__).parents[1]) -> str:
    """The identity of an engine's build: a hash of its sources and of the settings that it reads.

    A scheduler attaches only to actors of its own build. Compiled files beside the sources do not count: they appear
    and disappear while a server runs.
    """
    read = (settings.model, engine_files(settings), settings.null_engine, engine_settings(settings))
    digest = hashlib.sha256(repr(read).encode())
    for file in source_files(root):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def source_files(root: Path) -> list[Path]:
    """The files of `SOURCES` in the checkout or installation at `root`."""
    found = []
    for name in SOURCES:
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in files if file.suffix in SUFFIXES and file.is_file()]
    return found


def engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        device=settings.device,
        dtype=settings.dtype,
        weights=settings.weights,
        kv_cache_dtype=settings.kv_cache_dtype,
        batch_invariant=settings.batch_invariant,
        cache_dir=settings.cache_dir,
        block_size=settings.block_size,
        kv_blocks=settings.kv_blocks,
        kv_memory_fraction=0.0 if settings.kv_memory_fraction == "auto" else settings.kv_memory_fraction,
        memory=settings.memory,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        tp=settings.tp,
        pp=settings.pp,
        deadly_token=settings.deadly_token,
        adapters=settings.files_folder if settings.enable_lora else None,
        max_lora_rank=settings.max_lora_rank,
        null_iteration=settings.constants.null_iteration,
    )


def replaced_of(settings: Settings) -> Replaced:
    """The files of the model that the settings replace."""
    config = settings.generation_config
    overrides = json.dumps(settings.hf_overrides, sort_keys=True) if settings.hf_overrides else ""
    own = "" if config in ("auto", NEUTRAL) else config
    return Replaced(settings.tokenizer, settings.chat_template, own, overrides)


def engine_files(settings: Settings) -> Replaced:
    """The replaced files that an engine reads: with another chat template it stays the same engine."""
    return replace(replaced_of(settings), chat_template="")


def layout_of(settings: Settings, rank: int = 0) -> Layout:
    return Layout(settings.tp, settings.pp, rank)
