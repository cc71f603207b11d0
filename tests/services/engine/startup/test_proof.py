"""The fast path serves on a new kind of device or build only after a trial."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_tiny_model

from services.engine.adapters import LowRankProduct
from services.engine.backends.cpu import adapters
from services.engine.backends.cpu.build import SOURCE, kernels
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packing import Packer
from services.engine.engine import Engine
from services.engine.families.registry import FAMILIES
from services.engine.preload import preload
from services.engine.settings import EngineSettings
from services.engine.startup import loading
from services.engine.startup.proof import verdict
from services.engine.startup.proof.__main__ import result_of
from services.engine.startup.proof.trial import trial
from services.engine.startup.proof.verdict import bound_of, judged, proven, run_trial
from services.errors import SettingsError
from services.files import user_cache

pytestmark = pytest.mark.long

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=64, threads=2)
KINDS = {
    "float32": SETTINGS,
    "blocks of five": replace(SETTINGS, block_size=5),
    "bfloat16": replace(SETTINGS, dtype="bfloat16"),
    "int8": replace(SETTINGS, weights="int8"),
    "int8 keys and values": replace(SETTINGS, kv_cache_dtype="int8_per_token_head"),
    "adapters": replace(SETTINGS, adapters=Path("not read")),
    "adapters, bfloat16": replace(SETTINGS, adapters=Path("not read"), dtype="bfloat16"),
    "the same, blocks of five": replace(SETTINGS, kv_cache_dtype="int8_per_token_head", block_size=5),
}


def bound(settings: EngineSettings) -> float:
    return bound_of(settings, getattr(torch, settings.dtype))


def pairs() -> Iterator[Any]:
    """Each family with one kind. `make test-all` runs the rest."""
    for i, family in enumerate(FAMILIES):
        for j, kind in enumerate(KINDS):
            yield pytest.param(family, kind, marks=() if j == i % len(KINDS) else pytest.mark.full)


@pytest.mark.parametrize(("family", "kind"), list(pairs()))
def test_the_compiled_layers_are_near_transformers(family: str, kind: str, tiny_model: Callable[[str], Path]) -> None:
    assert trial(tiny_model(family), KINDS[kind]) <= bound(KINDS[kind]) / 2.5


def another_position(patch: pytest.MonkeyPatch) -> None:
    """Rotations of the position before."""
    from services.engine.backends.cpu import packing

    table = packing.rotary_table
    patch.setattr(packing, "rotary_table", lambda *given: [part.roll(1, 0) for part in table(*given)])


def one_weight(patch: pytest.MonkeyPatch) -> None:
    """One input of an output of each product counts as zero."""
    matrix = Packer.matrix

    def wrong(self, linear, gated=False):
        linear.weight[3, 5] = 0.0
        return matrix(self, linear, gated)

    patch.setattr(Packer, "matrix", wrong)


def another_block(patch: pytest.MonkeyPatch) -> None:
    """The second block of a request is looked up in another place."""
    forward = CpuDecoder.forward

    def wrong(self, batch):
        tables = batch.tables.copy()
        for i in np.flatnonzero(np.diff(batch.table_starts) > 2):
            tables[batch.table_starts[i] + 1] = tables[batch.table_starts[i]]
        return forward(self, replace(batch, tables=tables))

    patch.setattr(CpuDecoder, "forward", wrong)


def no_number(patch: pytest.MonkeyPatch) -> None:
    """One logit is NaN."""
    logits = CpuDecoder.logits

    def wrong(self, *given):
        made = logits(self, *given)
        made[-1, 7] = torch.nan
        return made

    patch.setattr(CpuDecoder, "logits", wrong)


def another_window(patch: pytest.MonkeyPatch) -> None:
    """Windows are one token longer."""
    layer = Packer.layer

    def wrong(self, weights, spec, index, rotary):
        longer = replace(spec, windows=tuple(window + 1 if window else 0 for window in spec.windows))
        return layer(self, weights, longer, index, rotary)

    patch.setattr(Packer, "layer", wrong)


@pytest.mark.parametrize("plant", [another_position, one_weight, another_block, no_number])
def test_what_is_wrong_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not trial(tiny_model("llama"), SETTINGS) <= bound(SETTINGS)


def test_what_is_wrong_with_adapters_is_seen_where_they_are_served(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number of a `b` counts as zero."""
    pack = adapters.pack_low_rank

    def wrong(product: LowRankProduct, lanes: int, gated: bool) -> Any:
        product.b[3, 1] = 0.0
        return pack(product, lanes, gated)

    monkeypatch.setattr(adapters, "pack_low_rank", wrong)
    assert trial(tiny_model("llama"), SETTINGS) <= bound(SETTINGS)
    assert not trial(tiny_model("llama"), KINDS["adapters"]) <= bound(SETTINGS)


@pytest.mark.parametrize("size", [20, 200])
def test_a_wrong_window_is_seen(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is longer than the prompts of a trial."""
    folder = make_tiny_model(
        tmp_path, "mistral", with_tokenizer=False, sliding_window=size, max_position_embeddings=8192
    )
    assert trial(folder, SETTINGS) <= bound(SETTINGS)
    another_window(monkeypatch)
    assert not trial(folder, SETTINGS) <= bound(SETTINGS)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("pointwise.h", "squares / size +", "squares / (size + 1) +"),
        ("attention.h", "* heads_.scaling;", "* heads_.scaling * 1.02f;"),
    ],
)
def test_a_wrong_constant_in_a_kernel_is_seen(
    file: str,
    right: str,
    wrong: str,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled from a copy of the sources."""
    source = shutil.copytree(SOURCE, tmp_path / "kernels")
    text = (source / file).read_text()
    assert right in text
    (source / file).write_text(text.replace(right, wrong))
    monkeypatch.setattr(loading, "kernels", functools.partial(kernels, source=source))
    assert trial(tiny_model("llama"), replace(SETTINGS, cache_dir=tmp_path)) > bound(SETTINGS)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache with the compiled kernels and no verdict."""
    kernels(user_cache())
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    for library in (user_cache() / "kernels").glob("*.so"):
        shutil.copy(library, tmp_path / "cache" / "kernels")
    yield tmp_path / "cache"
    proven.cache_clear()


def keep(cache: Path, folder: Path, settings: EngineSettings, said: str) -> Path:
    """The file of an earlier start for this model."""
    file = verdict._file(folder, settings)
    assert file.parent == cache / "kernels"
    file.write_text(said)
    return file


def test_transformers_serve_where_it_failed(
    tiny_model: Callable[[str], Path], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, settings = tiny_model("llama"), replace(SETTINGS, cache_dir=cache)
    keep(cache, folder, settings, '{"fault": "its trial was ended by SIGILL"}')
    engine = Engine.load(folder, preload(folder, settings))
    assert engine.figures.numerics.endswith(" float32 cpu sdpa fallback")
    assert engine.sampler.search is None  # it would be compiled with the kernels that failed
    assert f"the fast path does not serve {folder.name} here: its trial was ended by SIGILL" in caplog.text


def test_ranks_have_nothing_else_and_refuse(tiny_model: Callable[[str], Path], cache: Path) -> None:
    folder, settings = tiny_model("llama"), replace(SETTINGS, cache_dir=cache, tp=2)
    keep(cache, folder, settings, '{"fault": "its trial was ended by SIGILL"}')
    with pytest.raises(SettingsError, match=r"tp=2, pp=1: ranks are served on the fast path only: .*SIGILL"):
        preload(folder, settings)
    with pytest.raises(SettingsError, match="SIGILL"):  # as the process that starts the cluster asks
        loading.check_ranks(folder, proven(folder, settings))


def test_a_trial_is_made_once(tiny_model: Callable[[str], Path], cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the real process; also if the kept verdict is torn."""
    caplog.set_level(logging.INFO)
    folder, settings = tiny_model("llama"), replace(SETTINGS, cache_dir=cache)
    file = keep(cache, folder, settings, '{"fau')
    for _ in range(2):
        proven.cache_clear()
        assert proven(folder, settings) == settings
    assert file.read_text() == '{"fault": ""}'
    assert caplog.text.count("trying the fast path") == 1
    assert Engine.load(folder, proven(folder, settings)).figures.numerics.endswith(" native")


def test_each_kind_has_a_trial_of_its_own(tiny_model: Callable[[str], Path], cache: Path) -> None:
    settings = replace(SETTINGS, cache_dir=cache)
    places = {
        keep(cache, tiny_model(family), replace(settings, **other), "")
        for family, other in [
            ("llama", {}),
            ("llama", {"kv_blocks": 65, "threads": 1, "tp": 2}),  # nothing that kernels compute otherwise
            ("qwen2", {}),
            ("llama", {"dtype": "bfloat16"}),
            ("llama", {"weights": "int8"}),
            ("llama", {"block_size": 5}),
            ("llama", {"kv_cache_dtype": "bfloat16"}),
            ("llama", {"kv_cache_dtype": "float32"}),  # as auto
        ]
    }
    assert len(places) == 6


@pytest.mark.parametrize(
    ("how", "fault", "lasting"),
    [
        ("segv", "its trial was ended by SIGSEGV", True),
        ("ill", "its trial was ended by SIGILL", True),
        ("killed", "its trial was ended by SIGKILL", False),  # by the kernel, for memory, or by a user
        ("silent", "its trial ended with status 1: no word of it", False),
        ("raises", "its trial raised ValueError: no word", True),
    ],
)
def test_a_process_that_fails_is_a_fault(
    how: str, fault: str, lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = run_trial(tmp_path / f"{how}-model", SETTINGS, "broken_trial")
    assert (found.fault, found.lasting) == (fault, lasting)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("AcceleratorError: CUDA error: out of memory", False),  # of the context
        ("RuntimeError: Triton Error [CUDA]: out of memory", False),  # of a kernel
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", False),
        ("OSError: [Errno 30] Read-only file system: '/root/.triton'", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
    ],
)
def test_what_the_machine_lacks_for_now_says_nothing_about_kernels(error: str, lasting: bool) -> None:
    assert judged({"error": error}, SETTINGS).lasting == lasting


def test_what_a_trial_raises_is_its_result(tmp_path: Path) -> None:
    """A folder without a model."""
    assert result_of(tmp_path, SETTINGS)["error"].startswith("ModelError: ")


@pytest.mark.chaos
def test_a_process_with_wrong_kernels_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    folder = make_tiny_model(tmp_path / "wrong-model", with_tokenizer=False)
    found = run_trial(folder, SETTINGS, "broken_trial")
    assert "from those of transformers' layers, over 0.0002" in found.fault
    assert found.lasting


def test_settings_cross_to_the_process_whole() -> None:

    settings = replace(SETTINGS, cache_dir=Path("/a/b"), weights="int8")
    assert EngineSettings.from_json(settings.to_json()) == settings
