"""What the Makefile tells uv of the settings that pip has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

CONFIG = """
[global]
index-url = https://global.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
find-links =
    /wheels
    /more
no-index = true
constraint =
    /pins.txt
    /more.txt
cert = /ca.pem
client-cert = /own.pem
proxy = http://proxy.example:3128
trusted-host =
    one.example
    two.example:8443
[install]
index-url = https://install.example/simple
[download]
index-url = https://download.example/simple
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("given", ["", "https://user:pa$$w%3Dord@env.example/simple"])
def test_uv_gets_pips_settings(tmp_path: Path, given: str) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(CONFIG)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment |= {"PIP_CONFIG_FILE": str(config)} | ({"PIP_INDEX_URL": given} if given else {})
    show = "show: ; @$(subst $(BIN)/uv pip install,env,$(UV))"
    command = ["make", "--no-print-directory", f"--eval={show}", "show"]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    found = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    assert found["UV_INDEX_URL"] == (given or "https://install.example/simple")
    assert found["UV_INDEX"].split() == ["https://one.example/simple", "https://two.example/simple"]
    assert found["UV_FIND_LINKS"] == "/wheels,/more"
    assert found["UV_OFFLINE"] == "true"
    assert found["UV_CONSTRAINT"] == "constraints.txt /pins.txt /more.txt"
    assert (found["SSL_CERT_FILE"], found["SSL_CLIENT_CERT"]) == ("/ca.pem", "/own.pem")
    assert found["HTTP_PROXY"] == found["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert found["UV_INSECURE_HOST"].split() == ["one.example", "two.example:8443"]
    assert "UV_DEFAULT_INDEX" not in found  # would count for more than --index-url, which names that of torch
