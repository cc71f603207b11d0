"""The verdict on the fast path: one trial in a process of its own decides whether it serves here, and is kept."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from services.child_environment import without_settings
from services.engine.backends.cpu.build import compiled
from services.engine.settings import EngineSettings, choose_block_size
from services.engine.startup import devices, loading
from services.files import write_atomically

PROGRAM = "services.engine.startup.proof"
PATIENCE = 600.0  # seconds, which include compiling a GPU's kernels
# signals that others send: they say nothing about the kernels
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# what a trial may raise that the next start may not: the memory or a folder is taken, Triton finds no compiler
PASSING = re.compile(f"{devices.SHORT.pattern}|C compiler|Read-only file system|Permission denied|No space left")
SUFFIXES = frozenset({".py", ".h", ".cpp"})
ENGINE = Path(__file__).parents[2]

# The largest difference at which the fast path serves: of the logits of two random layers, in units of the root mean
# square of their row. Measured on a CPU with AVX512-BF16 for llama, qwen2, qwen3, mistral and gpt2 of hidden size 64,
# SmolLM2-135M of 576, and layers in the shapes of real models, with blocks of 5, 16 and 32 tokens: float32 2e-6
# to 2e-5 (another order of sums), bfloat16 0.02 to 0.05 (a rounding is 2**-9, twice for each product), int8 0.07 to
# 0.17, keys and values in int8 0.03 to 0.07 (with bfloat16 too). Unrelated logits differ by 4 or more. A bound is three
# times the largest of these, and more where the difference grows with the length of sums: that of float32 grows with
# its square root, by 7 for a hidden size of 28,672. float16 rounds eight times finer than bfloat16. It has run on no
# device, so its bound has another factor of two.
BOUNDS = {torch.float32: 2e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
INT8 = 0.5
KV_BOUNDS = BOUNDS | {torch.int8: 0.25}  # of keys and values, beside that of weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault`: why the fast path does not serve; empty: it serves. `lasting`: another trial would have the same
    result."""

    fault: str
    lasting: bool = True


Run = Callable[[Path, EngineSettings], Verdict]


@functools.cache
def proven(folder: Path, settings: EngineSettings, run: Run | None = None) -> EngineSettings:
    """The settings to load the model in `folder` with: the given ones, or with `fast_path_fault` if the fast path is
    not trusted with this model's shapes on this device. A trial is run by `run`, otherwise by `run_trial`.

    The first process of a kind of device, build and model runs the trial, which takes seconds. Others wait for it, and
    later ones read the verdict, which is kept beside the compiled kernels. Raises ModelError for a model that cannot be
    served.
    """
    if not loading.runs_on_fast_path(folder, settings):
        return settings  # loading reports kernels that are absent
    verdict = _verdict(folder, settings, _file(folder, settings), run or run_trial)
    if not verdict.fault:
        return settings
    log.warning("the fast path does not serve %s here: %s", folder.name, verdict.fault)
    return replace(settings, fast_path_fault=verdict.fault)


def _verdict(folder: Path, settings: EngineSettings, file: Path, run: Run) -> Verdict:
    """The verdict that is kept in `file`, else that of a trial."""
    if kept := _kept(file):
        return kept
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            return _kept(file) or _try(folder, settings, file, run)
    except OSError as error:  # it cannot be kept, so each process runs a trial
        log.warning("the result of the fast path's trial cannot be kept: %s", error)
        return _try(folder, settings, None, run)


def _try(folder: Path, settings: EngineSettings, file: Path | None, run: Run) -> Verdict:
    log.info("trying the fast path with random layers of %s, once", folder.name)
    began = time.monotonic()
    verdict = run(folder, settings)
    log.info("tried it for %.1f s: %s", time.monotonic() - began, verdict.fault or "it may serve")
    if file and verdict.lasting:
        write_atomically(file, json.dumps({"fault": verdict.fault}).encode())
    return verdict


def _kept(file: Path) -> Verdict | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or it is torn
        return Verdict(str(json.loads(file.read_bytes())["fault"]))
    return None


def run_trial(folder: Path, settings: EngineSettings, program: str = PROGRAM) -> Verdict:
    """Run the module `program` in a process of its own, and return the verdict on its result, or on how it ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", program, str(folder)],
            input=settings.to_json(),
            env=without_settings(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"its trial took longer than {PATIENCE:.0f} s", lasting=False)
    if done.returncode < 0:
        number = signal.Signals(-done.returncode)
        return Verdict(f"its trial was ended by {number.name}", lasting=number not in FROM_OUTSIDE)
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Verdict(f"its trial ended with status {done.returncode}: {done.stderr.strip()[-500:]}", lasting=False)
    return judged(result, settings)


def judged(result: dict[str, Any], settings: EngineSettings) -> Verdict:
    """The verdict on what a trial has found: the `difference` of logits, or an `error`."""
    if "error" in result:
        return Verdict(f"its trial raised {result['error']}", lasting=not PASSING.search(result["error"]))
    bound = bound_of(settings, devices.choose_dtype(settings, devices.choose_device(settings)))
    if not result["difference"] <= bound:  # also if it is NaN
        return Verdict(f"its logits are {result['difference']:.2g} from those of transformers' layers, over {bound:g}")
    return Verdict("")


def bound_of(settings: EngineSettings, dtype: torch.dtype) -> float:
    """The largest difference at which the fast path serves."""
    of_weights = INT8 if settings.weights == "int8" else BOUNDS[dtype]
    return max(of_weights, KV_BOUNDS[devices.choose_cache_dtype(settings, dtype)])


def _file(folder: Path, settings: EngineSettings) -> Path:
    """Where the verdict is kept: a name made from all that a trial depends on."""
    spec, device = loading.fast_path_spec(folder, settings), devices.choose_device(settings)
    assert spec, "a model of the fast path"
    dtype = devices.choose_dtype(settings, device)
    weights = loading.open_model(spec, folder, settings)
    stored = weights.stored, sorted(weights.groups.items())
    kept = settings.weights, devices.choose_cache_dtype(settings, dtype)
    adapters = settings.max_lora_rank if settings.adapters else 0
    kind = (dtype, *stored, *kept, choose_block_size(settings), adapters)
    versions = [version(name) for name in ("torch", "transformers")]
    digest = hashlib.sha256(repr((_machine(device, settings), kind, versions)).encode())
    digest.update((folder / "config.json").read_bytes())
    for file in sorted(file for file in ENGINE.rglob("*") if file.suffix in SUFFIXES):
        digest.update(file.read_bytes())
    return settings.cache_dir / "kernels" / f"{digest.hexdigest()[:16]}.proof"


def _machine(device: torch.device, settings: EngineSettings) -> str:
    """The kind of device, and what its kernels are compiled with."""
    if device.type == "cpu":
        return compiled(settings.cache_dir).stem  # a hash of source, flags, compiler and the processor's features
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return f"{name} {capability} CUDA {torch.version.cuda} Triton {version('triton')}"
