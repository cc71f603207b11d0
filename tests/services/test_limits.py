"""What control groups leave to a process, by the files as kernels write them, and by groups of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.limits import free_memory, total_memory, usable_cores

GIB = 1 << 30
NONE_V1 = "9223372036854771712\n"  # memory.limit_in_bytes without a limit
CGROUPS = Path("/sys/fs/cgroup")


class Machine:
    """Files of /proc and of control groups in a folder. It has 8 GiB, of which 6 are available."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc, self._mounts = folder, folder / "proc", ""
        self.write("proc/meminfo", f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {6 << 20} kB\n")

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mount(self, root: str, where: str, kind: str, options: str = "rw") -> None:
        self._mounts += f"35 24 0:30 {root} {self.folder / where} ro,nosuid - {kind} {kind} {options}\n"
        self.write("proc/self/mountinfo", f"24 1 254:0 / / rw - ext4 /dev/vda rw\n{self._mounts}")

    def v2(self, path: str, root: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.mount(root, "cgroup", "cgroup2", "rw,nsdelegate")

    def v1(self, path: str, root: str = "/") -> None:
        self.write("proc/self/cgroup", f"5:memory:{path}\n3:cpu,cpuacct:{path}\n2:cpuset:/\n1:name=systemd:{path}\n")
        self.mount(root, "cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
        self.mount(root, "cgroup/memory", "cgroup", "rw,memory")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return Machine(tmp_path)


def test_a_machine_without_control_groups(machine: Machine) -> None:
    assert usable_cores(machine.proc) == 8
    assert total_memory(machine.proc) == 8 * GIB
    assert free_memory(machine.proc) == 6 * GIB


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("350000 100000", 3), ("50000 100000", 1), ("6400000 100000", 8)],
)
def test_a_quota_of_version_2(machine: Machine, quota: str, cores: int) -> None:
    machine.v2("/")
    machine.write("cgroup/cpu.max", quota + "\n")
    assert usable_cores(machine.proc) == cores


@pytest.mark.parametrize(("quota", "period", "cores"), [(-1, 100000, 8), (250000, 100000, 2), (10000, 50000, 1)])
def test_a_quota_of_version_1(machine: Machine, quota: int, period: int, cores: int) -> None:
    machine.v1("/docker/4af1", root="/docker/4af1")
    machine.write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", f"{quota}\n")
    machine.write("cgroup/cpu,cpuacct/cpu.cfs_period_us", f"{period}\n")
    assert usable_cores(machine.proc) == cores


def test_processors_of_a_set_are_in_the_mask(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3})
    machine.v2("/")
    machine.write("cgroup/cpu.max", "400000 100000\n")
    assert usable_cores(machine.proc) == 2


def test_the_smallest_limit_of_nested_groups_counts(machine: Machine) -> None:
    machine.v2("/system.slice/orca.service")
    machine.write("cgroup/system.slice/orca.service/cpu.max", "max 100000\n")
    machine.write("cgroup/system.slice/cpu.max", "300000 100000\n")
    machine.write("cgroup/system.slice/orca.service/memory.max", f"{4 * GIB}\n")
    machine.write("cgroup/system.slice/orca.service/memory.current", f"{GIB}\n")
    machine.write("cgroup/system.slice/memory.max", f"{5 * GIB}\n")
    machine.write("cgroup/system.slice/memory.current", f"{3 * GIB}\n")
    assert usable_cores(machine.proc) == 3
    assert total_memory(machine.proc) == 4 * GIB
    assert free_memory(machine.proc) == 2 * GIB


def test_memory_of_version_2(machine: Machine) -> None:
    machine.v2("/../pod1/container", root="/../pod1")  # a path that the namespace does not contain
    machine.write("cgroup/memory.max", f"{2 * GIB}\n")
    machine.write("cgroup/memory.current", f"{GIB}\n")
    machine.write("cgroup/memory.stat", f"anon 4096\ninactive_file {GIB // 2}\nactive_file 1\n")
    assert total_memory(machine.proc) == 2 * GIB
    assert free_memory(machine.proc) == 3 * GIB // 2
    machine.write("cgroup/memory.max", "max\n")
    assert total_memory(machine.proc) == 8 * GIB
    assert free_memory(machine.proc) == 6 * GIB


def test_memory_of_version_1(machine: Machine) -> None:
    machine.v1("/docker/4af1", root="/docker/4af1")
    machine.write("cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.write("cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    machine.write("cgroup/memory/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n")
    assert total_memory(machine.proc) == 2 * GIB
    assert free_memory(machine.proc) == 3 * GIB // 2
    machine.write("cgroup/memory/memory.limit_in_bytes", NONE_V1)
    assert total_memory(machine.proc) == 8 * GIB
    assert free_memory(machine.proc) == 6 * GIB


def test_a_group_that_uses_more_than_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.v2("/")
    machine.write("cgroup/memory.max", "4096\n")
    machine.write("cgroup/memory.current", "8192\n")
    assert free_memory(machine.proc) == 0


@contextlib.contextmanager
def group(controller: str, **values: int) -> Iterator[Path]:
    """A group of this machine, of version 1 or 2, with these values in its files."""
    one, two = CGROUPS / controller, CGROUPS / "cgroup.controllers"
    parent = CGROUPS if two.exists() and controller in two.read_text().split() else one
    folder = parent / f"orca-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        for name, value in values.items():
            file = folder / name.replace("__", ".")
            if not file.exists():
                pytest.skip(f"the control groups of this machine have no {file.name}")
            file.write_text(f"{value}\n")
        yield folder
    finally:
        folder.rmdir()


def within(folder: Path, expression: str) -> int:
    """An expression's value in a process of the group."""
    code = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    code += f"; from services.limits import *; print({expression})"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_a_process_in_a_group_of_this_machine_sees_its_quota() -> None:
    with group("cpu", cpu__cfs_period_us=100_000, cpu__cfs_quota_us=150_000) as folder:
        assert within(folder, "usable_cores()") == 1


def test_a_process_in_a_group_of_this_machine_sees_its_memory() -> None:
    with group("memory", memory__limit_in_bytes=GIB) as folder:
        assert within(folder, "total_memory()") == GIB
        assert GIB // 2 < within(folder, "free_memory()") < GIB
