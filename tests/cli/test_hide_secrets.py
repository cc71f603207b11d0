"""Secrets on a command line are overwritten in the arguments of the process; other arguments are not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from load.server import ROOT

PROGRAM = """
import sys
from pathlib import Path
from cli.arguments import hide_secrets
print(hide_secrets(), sys.argv[1:], Path("/proc/self/cmdline").read_text().split(chr(0))[3:-1], sep="|")
"""


@pytest.mark.parametrize(
    ("arguments", "shown", "flags"),
    [
        ("m --api-key abc d --port 1 e", "m --api-key *** * --port 1 e", ["--api-key"]),
        ("--api-key=abc --redis-url=x", "--api-key=*** --redis-url=*", ["--api-key", "--redis-url"]),
        ("--api-key a --api-key b", "--api-key * --api-key *", ["--api-key"]),
        ('--api-keys {"a":"é"} -x y', "--api-keys ********** -x y", ["--api-keys"]),
        ("--api-keys-file f --port 1", "--api-keys-file f --port 1", []),
    ],
)
def test_values_of_secret_flags_become_stars(arguments: str, shown: str, flags: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().split("|") == [str(flags), str(arguments.split()), str(shown.split())]
