"""Whether the lean path may serve here: a trial in a process of its own, once; what came of it is kept."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from filelock import FileLock

from services import atomic_file
from services.child_environment import without_settings
from services.engine import loading, placement
from services.engine.lean.shard import Shard
from services.engine.lean.spec import DecoderSpec
from services.engine.lean.weights import DecoderWeights
from services.engine.native.build import NoKernels, compiled
from services.engine.proof.bounds import bound_of
from services.engine.settings import EngineSettings

PROGRAM = "services.engine.proof"
PATIENCE = 600.0  # seconds; a GPU's kernels are compiled in it
# not what kernels do to themselves: whoever ends a process so, or has no memory left, says nothing about them
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
SUFFIXES = frozenset({".py", ".h", ".cpp"})
ENGINE = Path(__file__).parents[1]
ROOT = Path(__file__).parents[3]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault`: why the lean path does not serve; empty: it does. `lasting`: a next trial would say the same."""

    fault: str
    lasting: bool = True


@functools.cache
def proven(folder: Path, settings: EngineSettings) -> EngineSettings:
    """The settings to load the model in `folder` with: those given, or with `lean_fault` where the lean path is not to
    be trusted with this model's shapes on this device.

    The first process of a kind of device, build and model runs the trial, some seconds; others wait for it, and later
    ones read what is kept beside the compiled kernels. Raises ModelError for a model that cannot be served.
    """
    spec = loading.lean_spec(folder, settings)
    device = placement.choose_device(settings)
    if spec is None:
        return settings
    try:
        loading.need_kernels(settings, device)
    except NoKernels:
        return settings  # loading says so
    verdict = _verdict(folder, settings, _place(folder, settings, spec, device))
    if not verdict.fault:
        return settings
    log.warning("the fast path does not serve %s here: %s", folder.name, verdict.fault)
    return replace(settings, lean_fault=verdict.fault)


def _verdict(folder: Path, settings: EngineSettings, file: Path) -> Verdict:
    """The one that is kept in `file`, else that of a trial."""
    if kept := _kept(file):
        return kept
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            return _kept(file) or _tried(folder, settings, file)
    except OSError as error:  # no place to keep it: each process tries
        log.warning("what the trial of the fast path says cannot be kept: %s", error)
        return _tried(folder, settings, None)


def _tried(folder: Path, settings: EngineSettings, file: Path | None) -> Verdict:
    log.info("trying the fast path with random layers of %s, once", folder.name)
    began = time.monotonic()
    verdict = run_trial(folder, settings)
    log.info("tried it for %.1f s: %s", time.monotonic() - began, verdict.fault or "it may serve")
    if file and verdict.lasting:
        atomic_file.write(file, json.dumps({"fault": verdict.fault}).encode())
    return verdict


def _kept(file: Path) -> Verdict | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # none, or one that is no longer whole
        return Verdict(str(json.loads(file.read_bytes())["fault"]))
    return None


def run_trial(folder: Path, settings: EngineSettings, program: str = PROGRAM) -> Verdict:
    """Run the module `program` in a process of its own, and judge what it says or how it ended."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", program, str(folder)],
            input=json.dumps(asdict(settings), default=str),
            env=without_settings() | {"PYTHONPATH": path},
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
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Verdict(f"its trial ended with status {done.returncode}: {done.stderr.strip()[-500:]}", lasting=False)
    if "error" in said:
        return Verdict(f"its trial raised {said['error']}", lasting="OutOfMemory" not in said["error"])
    bound = bound_of(settings, placement.choose_dtype(settings, placement.choose_device(settings)))
    if not said["difference"] <= bound:  # NaN is no number to be near
        return Verdict(f"its logits are {said['difference']:.2g} from those of transformers' layers, over {bound:g}")
    return Verdict("")


def read_settings(said: str) -> EngineSettings:
    """The settings that `run_trial` wrote."""
    values = json.loads(said)
    return EngineSettings(**values | {"cache_dir": Path(values["cache_dir"])})


def _place(folder: Path, settings: EngineSettings, spec: DecoderSpec, device: torch.device) -> Path:
    """A file named after all that a trial depends on."""
    dtype = placement.choose_dtype(settings, device)
    stored = DecoderWeights(spec, folder, Shard()).stored
    kind = (dtype, stored, settings.weights, settings.batch_invariant, settings.block_size)
    versions = [version(name) for name in ("torch", "transformers")]
    digest = hashlib.sha256(repr((_machine(device, settings), kind, versions)).encode())
    digest.update((folder / "config.json").read_bytes())
    for file in sorted(file for file in ENGINE.rglob("*") if file.suffix in SUFFIXES):
        digest.update(file.read_bytes())
    return settings.cache_dir / "kernels" / f"{digest.hexdigest()[:16]}.proof"


def _machine(device: torch.device, settings: EngineSettings) -> str:
    """The kind of device, and what kernels are compiled with."""
    if device.type == "cpu":
        return compiled(settings.cache_dir).stem  # a hash of source, flags, compiler and the processor's abilities
    name, able = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return f"{name} {able} CUDA {torch.version.cuda} Triton {version('triton')}"
