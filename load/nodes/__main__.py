"""`python -m load.nodes [--part NAME ...]`: trials on a cluster of several Ray nodes on this machine.

Each node has namespaces of its own for network, processes and mounts, as a container has. All of them are inside
namespaces of this command: when it ends, whatever ends it, the kernel removes processes, links and shared memory. It
needs Linux, root and the commands `ip`, `unshare` and `nsenter`; without them it says so, and ends with status 0. It
ends with status 1 if something was lost, came twice or was wrong, or if a trial did not end as it must.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from load.nodes import parts as trials
from load.nodes.trial import NodeOptions
from load.report import machine

INSIDE = "LOAD_NODES_INSIDE"  # is set inside the namespaces
NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
# the first process of a process namespace has to wait for those that lose their parent, as a shell does
FIRST = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; "$@"; exit $?', "sh"]
PROBE = "ip link add probe type veth peer name other && ip link delete probe"


def main() -> None:
    names = sorted(file.stem for file in Path(trials.__path__[0]).glob("[!_]*.py"))
    parser = argparse.ArgumentParser(prog="python -m load.nodes", description=__doc__)
    parser.add_argument("--part", nargs="*", choices=names, default=names, help="which trials; default: all")
    parser.add_argument("--model", default="null", help="null engines, or as `orca serve --model` (autoscaling only)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of logs and histories")
    given = parser.parse_args()
    if INSIDE not in os.environ:
        if reason := missing():
            print(f"skipped: {reason}")
            return
        os.environ[INSIDE] = "1"
        command = [*NAMESPACES, *FIRST, sys.executable, "-m", "load.nodes", *sys.argv[1:]]
        os.execvp(command[0], command)
    folder = Path(tempfile.mkdtemp(prefix="orca-nodes-"))
    held = [try_part(name, NodeOptions(folder / name, given.model)) for name in given.part]
    if all(held) and not given.keep:
        shutil.rmtree(folder)
    else:
        print(f"\nLogs and histories are in {folder}")
    sys.exit(not all(held))


def missing() -> str:
    """Why there can be no nodes here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid():
        return "network namespaces need root"
    absent = [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]
    if absent:
        return f"there is no command {', '.join(absent)}: install iproute2 and util-linux"
    tried = subprocess.run([*NAMESPACES, "sh", "-c", PROBE], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this system makes no network namespaces: {tried.stderr.strip()}"


def try_part(name: str, options: NodeOptions) -> bool:
    """Run a part and print what it returns; whether it held."""
    options.folder.mkdir(parents=True)
    part = importlib.import_module(f"{trials.__name__}.{name}")
    shown, held = part.run(options)
    print(f"## {name}\n\nMeasured on {machine()}.\n\n{shown}\n", flush=True)
    return bool(held)


if __name__ == "__main__":
    main()
