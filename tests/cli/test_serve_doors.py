"""`orca serve` with secrets on its command line, TLS, and a pool with a password: what others can read and reach."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from ray.serve.generated import serve_pb2, serve_pb2_grpc

from actors.cluster.processes import Port, ports_of
from load.server import OrcaServer, free_port
from services.pool.connection import Connection
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from tests.services.settings.test_exposure import self_signed

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]

KEY, TENANTS_KEY, FILE_KEY, PASSWORD = "sk-own-4d2f91", "sk-alice-77c0ab", "sk-bob-e1f5c3", "pool-word-90aa17"
SECRETS = [secret.encode() for secret in (KEY, TENANTS_KEY, FILE_KEY, PASSWORD)]
OWN = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pool_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pool server whose user has a password."""
    server = PoolServer(choose_server(), tmp_path_factory.mktemp("pool"))
    url = asyncio.run(server.start())
    asyncio.run(_add_user(url))
    yield url.replace("unix://", f"unix://orca:{PASSWORD}@")
    asyncio.run(server.stop())


async def _add_user(url: str) -> None:
    connection = Connection(url)
    await connection.command("ACL", "SETUSER", "orca", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    await connection.close()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[str, str], pool_url: str
) -> Iterator[OrcaServer]:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "keys").write_text(f"bob: {FILE_KEY}\n")
    keys = ("--api-key", KEY, "--api-keys", f'{{"{TENANTS_KEY}": "alice"}}', "--api-keys-file", str(folder / "keys"))
    tls = ("--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1])
    flags = (*keys, *tls, "--redis-url", pool_url, "--null-engine", "--gateways", "1")
    server = OrcaServer(folder, *flags)
    server.until("other machines reach")
    (folder / "keys").unlink()  # it contains a key on purpose
    server.url = server.url.replace("http://127.0.0.1", "https://localhost")
    yield server
    server.__exit__()


@pytest.fixture(scope="module")
def client(server: OrcaServer, certificate: tuple[str, str]) -> Iterator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=certificate[0])
    with httpx.Client(base_url=server.url, verify=trusted, timeout=60) as client:
        yield client


def processes(server: OrcaServer) -> list[int]:
    found = {server.process.pid, *server.descendants(), *server.cluster()}
    assert len(found) > 10
    return sorted(found)


def test_keys_of_all_kinds_are_accepted_over_tls(client: httpx.Client) -> None:
    body = {"prompt": [10, 11], "max_tokens": 3, "ignore_eos": True}
    for key in (KEY, TENANTS_KEY, FILE_KEY):
        answer = client.post("/v1/completions", json=body, headers={"x-api-key": key})
        assert answer.status_code == 200, answer.text
    assert client.post("/v1/completions", json=body, headers={"x-api-key": "sk-other"}).status_code == 401


def test_plain_http_and_unknown_certificates_are_refused(server: OrcaServer) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/health")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(server.url + "/health")


def test_curl_is_served(server: OrcaServer, certificate: tuple[str, str]) -> None:
    command = [shutil.which("curl") or "curl", "-s", "--cacert", certificate[0], server.url + "/v1/models"]
    done = subprocess.run([*command, "-H", f"authorization: Bearer {KEY}"], capture_output=True, check=True)
    assert b'"object":"list"' in done.stdout


def test_no_process_shows_a_secret(server: OrcaServer) -> None:
    for pid in processes(server):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # the process has ended
                shown = Path(f"/proc/{pid}/{name}").read_bytes()
                assert not [secret for secret in SECRETS if secret in shown], f"{name} of {pid}"


def test_no_file_but_the_one_for_the_url_has_a_secret(server: OrcaServer) -> None:
    folder = server.cluster_folder()
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    files = [file for place in (folder, server.data_dir) for file in place.rglob("*") if file.is_file()]
    holders = [file for file in files if any(secret in file.read_bytes() for secret in SECRETS)]
    assert holders == [folder / "redis-url"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    assert len([file for file in files if file.suffix in (".log", ".out", ".err")]) > 10


def test_no_answer_and_no_output_has_a_secret(server: OrcaServer, client: httpx.Client) -> None:
    answers = [
        client.get(path, headers=OWN) for path in ("/metrics", "/version", "/v1/models", "/nowhere", "/openapi.json")
    ]
    answers += [client.post("/v1/completions", content=b"{", headers=OWN), client.get("/v1/models")]
    said = b"".join(answer.content + repr(answer.headers).encode() for answer in answers)
    said += "".join(server.lines).encode()
    assert not [secret for secret in SECRETS if secret in said]


def test_ray_keeps_no_secret_of_its_actors(server: OrcaServer) -> None:
    """Search the memory of Ray's store and of Serve's controller, which hold the arguments of actors."""
    for pid in (*server.cluster("gcs_server"), *server.pids("ray::ServeController"), *server.pids("ray::EngineActor")):
        assert not [secret for secret in SECRETS if _in_memory(pid, secret)]
    gateway = server.pids("ray::ServeReplica:orca:gateway")[0]
    assert _in_memory(gateway, SECRETS[3]), "the search finds nothing at all: a gateway has the pool's password"


def _in_memory(pid: int, secret: bytes) -> bool:
    """Whether the writable memory of a process contains `secret`."""
    places = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for place in places:
            first, last = (int(end, 16) for end in place[0].split("-"))
            if place[1].startswith("rw-p"):
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    if secret in memory.read(last - first):
                        return True
    return False


def test_no_port_is_open_to_other_machines(server: OrcaServer) -> None:
    ports = ports_of(processes(server))
    assert Port("127.0.0.1", server.port, "haproxy") in ports
    assert [port for port in ports if port.is_open] == []
    assert len(ports) > 10
    assert any("other machines reach: nothing" in line for line in server.lines)


def test_the_admin_socket_of_haproxy_is_for_this_user(server: OrcaServer) -> None:
    folder = server.cluster_folder()
    assert folder is not None
    (admin,) = folder.glob("*/admin.sock")
    assert admin.stat().st_mode & 0o777 == 0o600


def test_the_port_between_deployments_requires_the_token_of_ray(server: OrcaServer) -> None:
    refused = 0
    request = serve_pb2.ASGIRequest(pickled_request_metadata=b"no pickle")
    for port in ports_of(server.pids("ray::ServeReplica:orca:gateway")):
        with grpc.insecure_channel(f"127.0.0.1:{port.port}") as channel:
            call = serve_pb2_grpc.ASGIServiceStub(channel).HandleRequest
            with pytest.raises(grpc.RpcError) as raised:
                call(request, timeout=10)
        refused += raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert refused == 1


def test_a_public_address_is_refused_without_keys(tmp_path: Path) -> None:
    second = OrcaServer(tmp_path, "--host", "0.0.0.0", port=free_port())
    assert second.process.wait(60) == 2
    assert "set api_keys_file, api_keys or api_key, or allow_no_keys" in "".join(second.lines)


def test_a_server_that_cannot_start_names_the_cause(tmp_path: Path) -> None:
    """Its port is taken after it was found free. Ray is stopped because of that, which is not the cause."""
    server = OrcaServer(tmp_path, "--null-engine")
    server.until("starting engines")
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))
        server.until("logs are in")
    assert server.process.wait(60) == 1
    assert "HAProxy" in server.lines[-1]
    server.__exit__()
