"""What `load/locustfile.py` is made of, and the program `orca-locust`; see docs/load_testing.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"


def main() -> None:
    """Locust with this locustfile, from any folder. All arguments are Locust's; `-f` names another locustfile."""
    try:
        from locust.main import main as locust  # not above: it patches all sockets for gevent
    except ModuleNotFoundError as error:
        sys.exit(f"orca-locust needs Locust: pip install 'orca[bench]' ({error})")
    os.environ.setdefault("LOCUST_LOCUSTFILE", str(LOCUSTFILE))
    locust()
