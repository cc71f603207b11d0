"""`python nodes_process.py FOLDER`, in new namespaces: connects a machine, cuts it off, connects it again and ends it.

Prints what each try to reach this process from the machine came to, and how many processes are left.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from load.chaos.nodes.machine import HERE, Machine, Network
from services.child_environment import without_settings

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=0.3)"


def main() -> None:
    network = Network()
    listener = socket.create_server((HERE, 0))
    port = str(listener.getsockname()[1])
    machine = Machine("one", Path(sys.argv[1]) / "one", network, without_settings())
    machine.start("sleep", "12345")

    def reached() -> bool:
        try:
            machine.run([sys.executable, "-c", CONNECT, HERE, port])
        except subprocess.CalledProcessError:
            return False
        return True

    print("connected", reached())
    machine.cut()
    print("cut", reached())
    machine.mend()
    print("mended", reached())
    machine.end()
    print("left", sum("12345" in path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline")))


if __name__ == "__main__":
    main()
