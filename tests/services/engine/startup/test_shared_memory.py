"""An engine on the weights and the KV cache that another one has left in shared memory."""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_driver import install

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup import devices, huge_pages
from services.engine.startup.huge_pages import HUGE_PAGE, BlockPages, map_shared
from services.engine.startup.shared_memory import CHUNK, HEADER, SharedMemory
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

needs_huge_pages = pytest.mark.skipif(not huge_pages.available(), reason="shared memory has no huge pages here")
SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=16, threads=1)
INT8_CACHE = {"kv_cache_dtype": "int8_per_token_head"}
Make = Callable[[str], SharedMemory]  # of a process of this build
PROMPT = list(range(5, 16))  # two full blocks and three tokens


def new(computed: int = 0) -> NewRequest:
    return NewRequest("a/0", PROMPT, len(PROMPT), SamplingParams(8, temperature=0.0), computed)


@pytest.fixture(params=["memfd", "device"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Memory as on a CPU, or with its tensors in that of a device."""
    fakes = install(monkeypatch.setattr)[1] if request.param == "device" else {}
    return lambda build: SharedMemory(build, fakes)


@needs_huge_pages
@pytest.mark.parametrize("change", [{}, {"dtype": "bfloat16"}, {"weights": "int8"}, INT8_CACHE])
def test_full_blocks_and_weights_are_found_and_others_are_erased(
    change: dict[str, object], tiny_model: Callable[[str], Path], shared: Make
) -> None:
    settings = dataclasses.replace(SETTINGS, **change)
    first, second = shared("build"), shared("build")
    old = Engine.load(tiny_model("llama"), settings, memory=first)
    second.hold(first.path)
    old.reset("1:a")
    expected = old.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]})).tokens
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x", 1: b"y"}))
    old._cache.values[0][2].view(torch.int8).fill_(-1)  # NaN, as a request may leave it that has failed
    first.release()
    del old
    engine = Engine.load(tiny_model("llama"), settings, memory=second)
    assert engine.block_names == {0: b"x", 1: b"y"}
    engine.reset("2:b")
    again = Iteration("2:b", 1, {"a/0": 3}, [new(8)], {"a/0": [0, 1, 2]})
    assert engine.run(again).tokens == expected
    assert not (engine._cache.values[0][2].view(torch.int8) == -1).all(-1).any()


@needs_huge_pages
@pytest.mark.parametrize("other", ["build", "settings", "numerics", "cache", "model", "unfinished"])
def test_nothing_of_others_is_used(other: str, tiny_model: Callable[[str], Path], shared: Make) -> None:
    first, second = shared("build"), shared("other" if other == "build" else "build")
    old = Engine.load(tiny_model("llama"), SETTINGS, memory=first)
    old.reset("1:a")
    old.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]}))
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x"}))
    if other == "unfinished":
        with Path(first.path).open("r+b") as header:
            header.write(bytes(32))
    second.hold(first.path)
    changes: dict[str, dict[str, Any]] = {
        "settings": {"kv_blocks": 8},
        "numerics": {"dtype": "bfloat16"},
        "cache": INT8_CACHE,
    }
    settings = dataclasses.replace(SETTINGS, **changes.get(other, {}))
    engine = Engine.load(tiny_model("gpt2" if other == "model" else "llama"), settings, memory=second)
    assert engine.block_names == {}
    assert engine.figures.num_blocks == settings.kv_blocks


@needs_huge_pages
def test_a_write_to_the_weights_kills_the_process(tiny_model: Callable[[str], Path], shared: Make) -> None:
    """Otherwise wrong weights would outlive the process that has written them."""
    memory = shared("build")
    engine = Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    weights = engine.decoder._packed.layers[0].down.panels  # type: ignore[attr-defined]
    assert _permissions(weights) == "r--s"
    assert _permissions(engine._cache.keys[0]) == _permissions(engine._cache.record) == "rw-s"


def _permissions(tensor: torch.Tensor) -> str:
    """Return the permissions of the mapping in which a tensor lies."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        first, end = (int(address, 16) for address in addresses.split("-"))
        if first <= tensor.data_ptr() < end:
            return permissions
    raise AssertionError("not mapped")


@needs_huge_pages
def test_memory_is_given_back_with_the_last_that_uses_it(tiny_model: Callable[[str], Path], shared: Make) -> None:
    memory = shared("build")
    engine: Engine | None = Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    inodes = {os.fstat(descriptor).st_ino for descriptor in (memory._descriptor or 0, *memory._chunks)}
    assert any(map(_is_mapped, inodes))
    memory.release()
    del engine
    gc.collect()
    assert not any(map(_is_mapped, inodes))


def _is_mapped(inode: int) -> bool:
    """Whether a memfd of this inode is mapped here."""
    mappings = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(mapping[4]) == inode and mapping[5].startswith("/memfd:") for mapping in mappings if mapping[5:])


def test_without_huge_pages_nothing_is_shared(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "available", lambda: False)
    memory = SharedMemory("build")
    Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    assert memory.path == ""


@needs_huge_pages
def test_an_engine_is_loaded_where_a_device_does_not_map_what_another_has_left(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver, fakes = install(monkeypatch.setattr)
    first, second = SharedMemory("build", fakes), SharedMemory("build", fakes)
    old = Engine.load(tiny_model("llama"), SETTINGS, memory=first)
    second.hold(first.path)
    driver.refused.add("cuMemImportFromShareableHandle")
    assert Engine.adopt(tiny_model("llama"), SETTINGS, 0, second) is None
    assert "cuMemImportFromShareableHandle: CUDA error 801" in caplog.text
    assert Engine.load(tiny_model("llama"), SETTINGS, memory=second).figures == old.figures
    assert Path(second.path).stat().st_ino != Path(first.path).stat().st_ino


@needs_huge_pages
def test_blocks_are_counted_beside_a_spare(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare takes what this process takes of a device beside the memory that both share."""
    found: list[int] = []

    def free(device: torch.device) -> int:
        return 1 << 24

    def process(device: torch.device, shared: int) -> int:
        found.append(shared)
        return 1 << 22

    settings = dataclasses.replace(SETTINGS, kv_blocks=0, max_model_len=64)
    monkeypatch.setattr(devices, "free_bytes", free)
    monkeypatch.setattr(devices, "process_bytes", process)
    alone = Engine.load(tiny_model("llama"), settings, memory=SharedMemory("build", {}))
    memory = SharedMemory("build", install(monkeypatch.setattr)[1])
    beside = Engine.load(tiny_model("llama"), settings, memory=memory)
    assert found == [CHUNK]
    assert beside.figures.num_blocks == alone.figures.num_blocks * 3 // 4


@needs_huge_pages
def test_blocks_that_requests_get_lie_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4 * HUGE_PAGE)
    memory = map_shared(descriptor, 4 * HUGE_PAGE)
    os.close(descriptor)
    store = torch.frombuffer(memory, dtype=torch.uint8).view(8, HUGE_PAGE // 2)
    monkeypatch.setattr(BlockPages, "AHEAD", 2)
    pages = BlockPages([store])
    assert not store.any()  # reads all pages, which makes none huge
    assert _huge(store) == HUGE_PAGE
    for blocks, huge in (([1], 2), ([5, 4], 4), ([7, 3], 4)):  # with those that are two blocks ahead
        if thread := pages.back(blocks):
            thread.join()
        assert not store.any()
        assert _huge(store) == huge * HUGE_PAGE


@needs_huge_pages
def test_the_first_request_takes_no_memory_from_the_system(tiny_model: Callable[[str], Path]) -> None:
    memory = SharedMemory("build")
    engine = Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    before = Path(memory.path).stat().st_blocks
    engine.reset("1:a")
    engine.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]}))
    assert Path(memory.path).stat().st_blocks == before


def _huge(tensor: torch.Tensor) -> int:
    """The bytes of its mapping that lie in huge pages."""
    mapping = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if line.startswith("ShmemPmdMapped:") and mapping:
            return int(rest.split()[0]) * 1024
        if "-" in head and not head.endswith(":"):
            mapping = int(head.split("-")[0], 16) == tensor.data_ptr()
    raise AssertionError("not mapped")


@needs_huge_pages
def test_a_memory_is_held_until_there_is_another(tiny_model: Callable[[str], Path], shared: Make) -> None:
    """The other process may die after it has told where its memory is."""
    first, second = shared("build"), shared("build")
    assert not second.hold("/proc/self/fd/100000")
    assert second.path == ""
    assert second.restore("any") is None
    Engine.load(tiny_model("llama"), SETTINGS, memory=first)
    assert second.hold(first.path)
    assert not second.hold(first.path)
    held = Path(second.path).stat().st_ino
    assert not second.hold("/proc/self/fd/100000")
    assert Path(second.path).stat().st_ino == held


@needs_huge_pages
def test_what_is_there_is_used_also_where_no_more_huge_pages_can_be_had(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = SharedMemory("build"), SharedMemory("build")
    old = Engine.load(tiny_model("llama"), SETTINGS, memory=first)
    second.hold(first.path)
    old.reset("1:a")
    old.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]}))
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x"}))
    monkeypatch.setattr(huge_pages, "available", lambda: False)
    assert Engine.load(tiny_model("llama"), SETTINGS, memory=second).block_names == {0: b"x"}


@needs_huge_pages
@pytest.mark.parametrize("place", [(1 << 63, 1), (0, 1 << 63), (1 << 40, 1 << 40)])
def test_a_header_that_points_nowhere_counts_as_empty(
    place: tuple[int, int], tiny_model: Callable[[str], Path]
) -> None:
    memory = SharedMemory("build")
    Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    with Path(memory.path).open("r+b") as header:
        header.write(HEADER.pack(b"?" * 32, 0, *place, 0))
    assert memory.restore("any") is None


@needs_huge_pages
def test_an_engine_that_gets_no_shared_memory_has_its_own(
    tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    memory = SharedMemory("build")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * HUGE_PAGE - 1, before[1]))
    try:
        engine = Engine.load(tiny_model("llama"), SETTINGS, memory=memory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert memory.path == ""
    assert "shared memory" in caplog.text
    engine.reset("1:a")
    assert engine.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]})).tokens
