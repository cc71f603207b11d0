"""The device and dtype that the model runs with, its threads, and how many KV blocks fit in memory."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from services.engine.backends.cpu.build import cpuinfo
from services.engine.settings import CPU_SHARE, GPU_SHARE, EngineSettings
from services.errors import SettingsError
from services.limits import free_memory, usable_cores

LEAST_CAPABILITY = 8, 0  # the first that multiplies bfloat16
GIB = 1 << 30
SHORT = re.compile("out of memory|ALLOC_FAILED")  # as the driver and libraries say it
OWN = GIB  # bytes of a GPU that its driver and this process's context may take


def choose_device(settings: EngineSettings) -> torch.device:
    """The requested device; `auto` is CUDA where there is one. Raises SettingsError if it is absent."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device=cuda, but torch finds no CUDA device")
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def name(device: torch.device) -> str:
    """A device as `numerics` names it: a GPU's model, and neither driver nor compiler, whose updates need not change a
    bit."""
    if device.type == "cpu":
        return "cpu"
    return f"{device.type} {torch.cuda.get_device_name(device).replace(' ', '-')}"


def serial(device: torch.device) -> str:
    """Which one of its kind a device is: only there can memory be mapped that a process has left on it."""
    return "" if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


def forbid_shortcuts() -> None:
    """Let products and convolutions of torch on a GPU have no sums in fewer bits than float32, and no sums in parts:
    cuBLAS splits the inputs of a product only if it has a workspace. Torch reads this when it multiplies for the first
    time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def keep_kernels(cache_dir: Path) -> None:
    """Let Triton keep what it compiles in our cache, unless the user has chosen a folder. Its own is in the home
    folder, which a container may lack, or not keep."""
    if "TRITON_HOME" not in os.environ:
        os.environ.setdefault("TRITON_CACHE_DIR", str(cache_dir / "kernels" / "triton"))


def choose_dtype(settings: EngineSettings, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations. Raises SettingsError for float16 on a CPU."""
    if settings.dtype == "float16" and device.type == "cpu":
        raise SettingsError("dtype=float16 is not served on device=cpu; use bfloat16 or float32")
    if settings.dtype != "auto":
        dtype: torch.dtype = getattr(torch, settings.dtype)
        return dtype
    return torch.bfloat16 if device.type == "cuda" or _cpu_prefers_bfloat16() else torch.float32


def choose_cache_dtype(settings: EngineSettings, dtype: torch.dtype) -> torch.dtype:
    """The dtype of keys and values, for weights and activations in `dtype`."""
    if settings.kv_cache_dtype == "auto":
        return dtype
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(settings.kv_cache_dtype, torch.int8)


def open_device(device: torch.device) -> None:
    """Create CUDA's context. Raises SettingsError for a GPU that is too old or that cannot be used now."""
    try:
        torch.zeros(1, device=device)
        older = device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise SettingsError(
            f"device={device.type}: {why}; see in nvidia-smi whether another process has taken the GPU or its memory"
        ) from error
    if older:
        name, has = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        raise SettingsError(
            f"device=cuda: {name} has compute capability {has[0]}.{has[1]}, "
            f"and the least that is served is {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]}; use device=cpu"
        )


def set_threads(settings: EngineSettings) -> None:
    """Set torch's threads, of which Ray and OpenMP may have set one. 0 means every core that this process may use all
    the time (see `usable_cores`), shared by all ranks."""
    cores = usable_cores() // (settings.tp * settings.pp)
    torch.set_num_threads(settings.threads or max(1, cores))


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has AVX512-BF16 or AMX. Other CPUs convert bfloat16 and are slower with it than with float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cpu_prefers_bfloat16() -> bool:
    """True with AMX, and with AVX512-BF16 of AMD. Intel's AVX512-BF16 takes more than twice as long as its float32."""
    if torch.cpu._is_avx512_bf16_supported() and "AuthenticAMD" in cpuinfo():
        return True
    return bool(torch.cpu._is_amx_tile_supported())


def count_blocks(
    settings: EngineSettings, bytes_per_block: int, block_size: int, max_model_len: int, free: int, device: torch.device
) -> int:
    """`kv_blocks`, or floor(free bytes * kv_memory_fraction / bytes_per_block), with the weights already loaded.

    `bytes_per_block` is the size of a block over all ranks that share the `free` bytes, so that all ranks have the same
    number of blocks. There are at most as many as 4,096 requests of the model's length need. Raises SettingsError if
    not one block fits, or on a GPU not as many as are asked for; a CPU's memory is taken when it is written.
    """
    if settings.kv_blocks:
        asked = settings.kv_blocks * bytes_per_block
        if device.type == "cuda" and asked > free:
            raise SettingsError(
                f"kv_blocks={settings.kv_blocks} take {asked / GIB:.1f} GiB, and {free / GIB:.1f} GiB of "
                f"{_card(device)} are free beside the model; lower kv_blocks, or leave it out"
            )
        return settings.kv_blocks
    share = settings.kv_memory_fraction or (GPU_SHARE if device.type == "cuda" else CPU_SHARE)
    fitting = int(free * share) // bytes_per_block
    if fitting < 1:
        raise SettingsError(
            f"kv_memory_fraction={share} of {free} free bytes holds no KV block of {bytes_per_block} bytes"
        )
    return min(fitting, 4096 * -(-max_model_len // block_size))


def process_bytes(device: torch.device, shared: int) -> int:
    """Bytes of a GPU that this process takes, besides `shared` ones: its context, kernels, graphs and buffers. What
    other processes take is not told apart, so there is a bound. 0 on a CPU."""
    if device.type == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return min(OWN, int(total) - int(free) - shared)


def free_unused() -> None:
    """Give back the memory to which nothing refers, also a GPU's."""
    gc.collect()
    torch.cuda.empty_cache()


def finish(device: torch.device) -> None:
    """Wait until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Free memory of the device; on a CPU what the machine and this process's control groups leave."""
    if device.type == "cuda":
        free_unused()  # what loading has left counts as taken otherwise
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory()


@contextmanager
def fitting(device: torch.device) -> Iterator[None]:
    """Within, a GPU's memory that does not suffice raises SettingsError, with a sentence that says what takes it."""
    if device.type != "cuda":
        yield
        return
    free, total = torch.cuda.mem_get_info(device)
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or SHORT.search(str(error))):
            raise
        taken = total - free
        others = f", of which other processes had taken {taken / GIB:.1f} (see nvidia-smi)" if taken > OWN else ""
        raise SettingsError(
            f"the model does not fit {_card(device)}, which has {total / GIB:.1f} GiB{others}: "
            f"{str(error).split('. ')[0]}; use a larger GPU, several with tp, a smaller model or a lower max_model_len"
        ) from error


def _card(device: torch.device) -> str:
    return f"{device.type} ({torch.cuda.get_device_name(device)})"
