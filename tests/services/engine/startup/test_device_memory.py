"""Memory of a device that a process leaves to another, over a fake driver: who gets it, when, and what is refused."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from fake_driver import FakeDevice, FakeDriver, install
from rank_processes import FORKS, PATIENCE

from services.engine.batch.buffers import Allocate
from services.engine.startup import cuda_memory, descriptors, shared_memory
from services.engine.startup.cuda_memory import CudaMapping, DriverError
from services.engine.startup.descriptors import DescriptorServer, receive
from services.engine.startup.shared_memory import CHUNK, DeviceMemory, SharedMemory

CPU = torch.device("cpu")
Fake = tuple[FakeDriver, Mapping[str, DeviceMemory]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return install(monkeypatch.setattr)


def filled(memory: SharedMemory, byte: int = 1, size: int = 1000) -> Any:
    """Two tensors of this byte in place of weights and KV cache."""

    def made(allocate: Allocate) -> Any:
        return allocate((size,), torch.uint8, CPU).fill_(byte)

    return memory.fill("same", made, lambda _, allocate: made(allocate))


def test_structures_are_as_large_as_those_of_the_driver() -> None:
    sizes = [ctypes.sizeof(one) for one in (cuda_memory._Location, cuda_memory._Properties, cuda_memory._Access)]
    assert sizes == [8, 32, 12]


def test_tensors_lie_in_the_devices_memory_and_are_found_there(fake: Fake) -> None:
    """One larger than a chunk has its own, and what follows uses the rest of the first."""
    first, second = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])

    def weights(allocate: Allocate) -> Any:
        shapes = [(3, 5), (CHUNK + 1,), (7,)]
        tensors = [allocate(shape, torch.bfloat16, CPU) for shape in shapes]
        assert not any(bool(tensor.any()) for tensor in tensors)
        return [tensor.fill_(i) for i, tensor in enumerate(tensors)]

    first.fill("same", weights, lambda _, allocate: allocate((9,), torch.int64, CPU).fill_(9))  # type: ignore[return-value]
    assert first.device_bytes == 0 or len(first._chunks) == 3
    assert second.hold(first.path)
    found: Any = second.restore("same")
    assert [tuple(tensor.shape) for tensor in found.decoder] == [(3, 5), (CHUNK + 1,), (7,)]
    assert [int(tensor.flatten()[-1]) for tensor in found.decoder] == [0, 1, 2]
    found.cache.fill_(5)
    again: Any = first.restore("same")
    assert again.cache.tolist() == [5] * 9


def test_a_spare_that_has_become_the_engine_gives_the_memory_on(fake: Fake) -> None:
    first, second, third = (SharedMemory("build", fake[1]) for _ in range(3))
    filled(first)
    assert second.hold(first.path)
    first.release()
    assert third.hold(second.path)
    second.release()
    found: Any = third.restore("same")
    assert bool((found.decoder == 1).all())


def test_nothing_is_given_after_a_release(fake: Fake) -> None:
    first, second = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])
    kept = filled(first)
    memfd, path = os.dup(first._descriptor or 0), first.path
    name = shared_memory._name(path, memfd)
    first.release()
    with pytest.raises(ConnectionRefusedError):
        receive(name)
    assert not second.hold(path)
    os.close(memfd)
    assert bool((kept.decoder == 1).all())


def test_a_process_that_gives_nothing_is_not_held(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stopped."""
    first, second = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])
    kept = filled(first)
    assert first._server
    first._server.close()
    stopped = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        with contextlib.suppress(OSError):  # the other one's thread may be in `accept` for a moment
            stopped.bind(f"\0{shared_memory._name(first.path, first._descriptor or 0)}")
            break
        time.sleep(0.01)
    stopped.listen()
    monkeypatch.setattr(descriptors, "PATIENCE", 0.1)
    assert not second.hold(first.path)
    assert second.path == ""
    stopped.close()
    assert bool((kept.decoder == 1).all())


@pytest.mark.parametrize("count", [1, descriptors.MOST, 2 * descriptors.MOST + 3])
def test_any_number_of_descriptors_is_given(count: int) -> None:
    memory = os.memfd_create("test")
    name = f"orca-test-descriptors-{os.getpid()}"
    server = DescriptorServer(name, [memory] * count)
    try:
        given = receive(name)
        assert len(given) == count
        assert all(os.path.sameopenfile(one, memory) for one in given)
        assert not any(os.get_inheritable(one) for one in given)
        for one in given:
            os.close(one)
    finally:
        server.close()
        os.close(memory)


def test_other_users_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = os.memfd_create("test")
    name = f"orca-test-user-{os.getpid()}"
    server = DescriptorServer(name, [memory])
    monkeypatch.setattr(descriptors, "_user", lambda connection: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        receive(name)
    server.close()
    os.close(memory)


def test_a_closed_server_has_no_thread(fake: Fake) -> None:
    before = set(threading.enumerate())
    server = DescriptorServer(f"orca-test-thread-{os.getpid()}", [0])
    (thread,) = set(threading.enumerate()) - before
    server.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_name_of_a_closed_server_is_free(fake: Fake) -> None:
    for _ in range(50):
        DescriptorServer(f"orca-test-name-{os.getpid()}", [0]).close()


def test_a_memory_that_is_not_finished_is_not_used(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may die between any two steps of filling it."""

    class Death(BaseException):
        pass

    steps = [(os, "pwrite"), (os, "ftruncate"), (shared_memory, "map_shared"), (cuda_memory.CudaMemory, "create")]
    steps += [(SharedMemory, "_offer")]
    left = itertools.count()
    for last in left:
        first, second = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])
        done = itertools.count()

        def dying(step: Callable[..., Any], done: Any = done, last: int = last) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                if next(done) == last:
                    raise Death
                return step(*arguments)

            return run

        with monkeypatch.context() as patched:
            for place, name in steps:
                patched.setattr(place, name, dying(getattr(place, name)))
            try:
                filled(first)
                break
            except Death:
                pass
        second.hold(first.path)
        assert second.restore("same") is None
        first.release()
        second.release()
    assert last > 6
    assert second.hold(first.path)
    assert second.restore("same")


# --- the end of a process ------------------------------------------------------------------------------------------


def make(pipe: Connection, seconds: float) -> None:
    """Fill a memory, tell where it is, listen, and let a child keep all files for so many seconds."""
    memory = SharedMemory("build", install()[1])
    kept = filled(memory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(f"\0orca-test-maker-{os.getpid()}")
    if seconds and os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    pipe.send((memory.path, os.getpid()))
    assert kept
    threading.Event().wait()


def listens(pid: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(f"\0orca-test-maker-{pid}")
        except ConnectionRefusedError:
            return False
    return True


@pytest.mark.parametrize("child", [0.0, 3.0])
def test_the_files_of_a_process_are_closed_when_its_end_is_known(child: float, fake: Fake) -> None:
    """With them what it has started on a device ends. Files that a child has kept open show by its socket."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=make, args=(theirs, child), daemon=True)
    process.start()
    assert ours.poll(PATIENCE)
    path, pid = ours.recv()
    memory = SharedMemory("build", fake[1])
    assert memory.hold(path)
    assert listens(pid)
    assert memory.end_maker(PATIENCE)
    assert listens(pid) == bool(child)
    process.join()
    found: Any = memory.restore("same")
    assert bool((found.decoder == 1).all())


def test_an_end_that_does_not_come_is_not_waited_for(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, other = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])
    kept = filled(memory)
    assert not memory.end_maker(PATIENCE), "its own"
    other.hold(memory.path)
    monkeypatch.setattr(shared_memory.signal, "pidfd_send_signal", lambda *_: None)  # this process is the maker
    assert not other.end_maker(0.01)
    assert kept


def test_weights_are_protected_when_all_that_writes_them_has_ended(fake: Fake) -> None:
    driver = fake[0]
    kept = filled(SharedMemory("build", fake[1]))
    protecting = len(driver.calls) - 1 - driver.calls[::-1].index("cuMemSetAccess")
    assert "cuCtxSynchronize" in driver.calls[protecting - 3 : protecting]
    assert kept


# --- faults of the device ------------------------------------------------------------------------------------------


def held(fake: Fake) -> tuple[SharedMemory, SharedMemory, Any]:
    first, second = SharedMemory("build", fake[1]), SharedMemory("build", fake[1])
    kept = filled(first)
    assert second.hold(first.path)
    return first, second, kept


def test_after_a_fault_of_the_device_nothing_is_used(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    first, second, _ = held(fake)
    device = fake[1]["cpu"]
    assert isinstance(device, FakeDevice)
    with pytest.raises(ValueError, match="a request"), first.iteration():
        raise ValueError("a request")
    assert second.sound
    device.faulty = True
    with pytest.raises(ValueError, match="illegal"), first.iteration():
        raise ValueError("illegal address")
    with first.iteration():  # whose result is here already
        pass
    assert not second.sound
    assert second.restore("same") is None
    assert "ECC" in caplog.text


def test_an_iteration_that_did_not_end_counts_as_a_fault(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may die in any other one."""
    first, second, _ = held(fake)
    with first.iteration():
        assert second.sound
        monkeypatch.setattr(shared_memory, "HUNG", 0.0)
        assert not second.sound
    assert second.sound


def test_a_process_that_takes_over_does_not_die_in_the_iteration_of_the_dead_one(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = held(fake)
    with first.iteration():
        assert second.sound
        second.rest()
        monkeypatch.setattr(shared_memory, "HUNG", 0.0)
        assert second.sound


# --- what the driver refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
)
def test_a_refused_call_is_an_error_of_the_system(call: str, fake: Fake) -> None:
    """An engine then has memory of its own, and no descriptor keeps what was made."""
    fake[0].refused.add(call)
    memory, before = SharedMemory("build", fake[1]), os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=f"{call}: CUDA error 801"):
        filled(memory)
    memory.release()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_torch_keeps_and_does_not_use_is_given_back(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver does not ask torch for it."""
    fake[0].refused.add("cuMemCreate")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake[0].refused.clear())
    assert filled(SharedMemory("build", fake[1]))


def test_the_device_has_done_its_work_before_weights_are_read_only(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before another process may find them."""
    done: list[str] = []
    memory = SharedMemory("build", fake[1])
    monkeypatch.setattr(FakeDevice, "check", lambda self: done.append("finished" if not found(memory) else "too late"))
    monkeypatch.setattr(CudaMapping, "protect", lambda self: done.append("protected"))
    filled(memory)
    assert done == ["finished", "protected"]


def found(memory: SharedMemory) -> bool:
    assert memory._descriptor is not None
    return any(os.pread(memory._descriptor, shared_memory.HEADER.size, 0))


def test_mps_is_refused(fake: Fake) -> None:
    fake[0].mps = 1
    with pytest.raises(DriverError, match="MPS runs on this GPU"):
        filled(SharedMemory("build", fake[1]))


def test_a_driver_without_the_attribute_is_used(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    fake[0].refused.add("cuDeviceGetAttribute")
    assert filled(SharedMemory("build", fake[1]))
    assert "MPS" in caplog.text
