"""Several gateways on one pool and one folder: a batch has one owner, and another gateway continues where it stops."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import openai
import pytest
from batch_client import COMPLETIONS, create, ended, entries, jsonl, line, slow, until
from stack import Stack
from waiting import wait_until

from gateway.batches import run, runner
from gateway.errors import ApiError
from gateway.files import disk
from gateway.files.store import FileStore, tenant_folder
from services import wire
from services.pool.pool import RequestPool
from services.requests import FinishReason
from services.settings.constants import Constants
from services.settings.settings import Settings

LINES = 30  # more than are in flight


class Gateways:
    """A gateway with the engine, and `other`, which the test can stop."""

    def __init__(self, redis_url: str, model: Path, files: Path) -> None:
        self.settings = Settings(files_dir=str(files), constants=Constants(lines_in_flight=16))
        self._args = redis_url, f"takeover-{secrets.token_hex(4)}", model, self.settings
        self.first = Stack(*self._args)
        self.files = files

    def other(self) -> Stack:
        return Stack(*self._args, engine=False)

    def segments(self) -> list[Path]:
        return list(self.files.rglob("segment-*"))


@pytest.fixture
def gateways(redis_url: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateways]:
    """They look for batches often, and notice as late as ever that they have lost one."""
    for module in (runner, run):
        monkeypatch.setattr(module, "PERIOD", 0.1)
    gateways = Gateways(redis_url, tiny_folder, tmp_path)
    with gateways.first:
        yield gateways


def client_of(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0)


async def drop_holds(pool: RequestPool) -> None:
    """Delete all leases, as if they had expired."""
    keys = [key async for key in pool._server._scripts.scan_iter(f"{pool._prefix}hold:*")]
    if keys:
        await pool._server.command("DEL", *keys)


async def stop_runner(stack: Stack) -> None:
    await stack.app.state.batch_runner.stop()


async def start_runner(stack: Stack) -> None:
    stack.app.state.batch_runner.start()


def check(client: openai.OpenAI, id: str) -> None:
    batch = ended(client, client.batches.retrieve(id))
    assert (batch.status, batch.error_file_id) == ("completed", None)
    output = entries(client, batch.output_file_id)
    assert [entry["custom_id"] for entry in output] == [f"line {i}" for i in range(LINES)]


def progressed(client: openai.OpenAI, id: str, count: int = 1) -> None:
    until(client, id, lambda b: b.request_counts is not None and b.request_counts.completed >= count)


def test_a_batch_has_one_owner_and_any_gateway_answers_for_it(gateways: Gateways) -> None:
    with gateways.other() as other, client_of(gateways.first) as client, client_of(other) as another:
        batch = create(client, slow(LINES))
        progressed(another, batch.id)
        assert len(gateways.segments()) == 1
        check(another, batch.id)


def test_another_gateway_continues_when_the_owner_ends(gateways: Gateways) -> None:
    with client_of(gateways.first) as client:
        gateways.first.call(stop_runner(gateways.first))
        with gateways.other() as other, client_of(other) as another:
            batch = create(another, slow(LINES))
            progressed(another, batch.id)
        assert client.batches.retrieve(batch.id).status == "in_progress"
        gateways.first.call(start_runner(gateways.first))
        check(client, batch.id)


def test_owners_that_lost_their_leases_do_no_harm(gateways: Gateways) -> None:
    """Each owner continues to write until it notices, up to a second later."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(gateways.other())
        client = stack.enter_context(client_of(gateways.first))
        batch = create(client, slow(LINES))
        progressed(client, batch.id)
        most = 0
        while client.batches.retrieve(batch.id).status == "in_progress":
            gateways.first.call(drop_holds(gateways.first.pool))
            most = max(most, len(gateways.segments()))
            time.sleep(0.1)
        assert most > 1
        check(client, batch.id)


def test_a_line_that_is_fed_again_has_the_same_tokens(gateways: Gateways) -> None:
    """A request that the first owner submitted, without writing its answer, is found in the pool under the same id."""
    lines = [line(str(i), {"prompt": f"SLOW{i}", "max_tokens": 10, "temperature": 1}) for i in range(8)]
    with client_of(gateways.first) as client:
        gateways.first.call(stop_runner(gateways.first))
        batch = create(client, jsonl(lines), COMPLETIONS)
        with gateways.other() as other:
            requests = _requests(other)
        gateways.first.call(start_runner(gateways.first))
        output = entries(client, ended(client, batch).output_file_id)
    assert {entry["response"]["request_id"] for entry in output} == requests


def _requests(stack: Stack) -> set[str]:
    """The open requests of the runner of this gateway, when all of them are submitted."""
    end = time.monotonic() + 20

    async def names() -> set[str]:
        keys: Any = stack.pool._server._scripts.scan_iter(f"{stack.pool._prefix}group:*")
        return {key.decode().rpartition(":")[2] async for key in keys}

    while len(found := stack.call(names())) < 8:
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_server_of_another_model_does_not_run_a_batch(gateways: Gateways) -> None:
    with client_of(gateways.first) as client:
        gateways.first.call(stop_runner(gateways.first))
        gateway = gateways.first.app.state.gateway.first
        lines = jsonl([line("a", {"prompt": "a", "max_tokens": 1})])
        gateway.model = replace(gateway.model, name="another")
        batch = create(client, lines, completion_window="1s")
        gateway.model = replace(gateway.model, name="tiny")
        gateways.first.call(start_runner(gateways.first))
        batch = ended(client, batch)
        assert (batch.status, batch.output_file_id) == ("expired", None)
        assert len(entries(client, batch.error_file_id)) == 1


def test_an_unreadable_batch_does_not_delay_others(gateways: Gateways) -> None:
    """A newer build may have written it before this one was restored."""
    lines = jsonl([line("a", {"prompt": "a", "max_tokens": 1})])
    with client_of(gateways.first) as client:
        gateways.first.call(stop_runner(gateways.first))
        first, second = create(client, lines), create(client, lines)
        (record,) = gateways.files.rglob(f"{first.id}/record")
        whole = record.read_bytes()
        record.write_bytes(wire.pack([*msgpack.unpackb(whole), "a field more"]))
        gateways.first.call(start_runner(gateways.first))
        assert ended(client, second).status == "completed"
        record.write_bytes(whole)
        assert ended(client, first).status == "completed"


def test_a_batch_without_its_input_fails(gateways: Gateways) -> None:
    with client_of(gateways.first) as client:
        client.models.list()  # it is up
        gateways.first.call(stop_runner(gateways.first))
        batch = create(client, slow(2))
        (gateways.first.app.state.batches.at(tenant_folder("default"), batch.id).input).unlink()
        gateways.first.call(start_runner(gateways.first))
        failed = ended(client, batch)
    assert failed.status == "failed"
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [error.code for error in failed.errors.data] == ["input_file_gone"]
    wait_until(lambda: not list((gateways.files / "open").iterdir()))  # the mark goes after the record that says why


def test_a_record_of_a_later_build_does_not_hide_others(gateways: Gateways) -> None:
    with client_of(gateways.first) as client:
        client.models.list()  # it is up
        gateways.first.call(stop_runner(gateways.first))
        batches = [create(client, slow(1)) for _ in range(2)]
        folders = [gateways.first.app.state.batches.at(tenant_folder("default"), batch.id) for batch in batches]
        (folders[0].path / "record").write_bytes(b"\xc1")
        values = msgpack.unpackb((folders[1].path / "record").read_bytes())
        (folders[1].path / "record").write_bytes(msgpack.packb([*values, "new"]))
        files = sorted((gateways.files / tenant_folder("default") / "files").glob("*.json"))
        disk.replace(files[0], b"[]")
        disk.replace(files[1], files[1].read_bytes().replace(b"{", b'{"new": 1, ', 1))
        assert [batch.id for batch in client.batches.list()] == [batches[1].id]
        assert [file.id for file in client.files.list()] == [batches[1].input_file_id]


def test_inputs_of_deleted_files_count_while_their_batches_last(gateways: Gateways) -> None:
    with client_of(gateways.first) as client:
        client.models.list()  # it is up
        store = gateways.first.app.state.files
        gateways.first.call(stop_runner(gateways.first))
        batch = create(client, slow(200))
        size = client.files.retrieve(batch.input_file_id).bytes
        small = FileStore(store.root, Constants(max_tenant_bytes=2 * size))
        small.check_room("default", size // 2)
        client.files.delete(batch.input_file_id)
        small.check_room("default", size // 2)
        with pytest.raises(ApiError, match="this server keeps"):
            small.check_room("default", size + 1)


def test_cancelling_a_batch_cancels_requests_of_a_dead_owner(gateways: Gateways) -> None:
    """The next owner finds the requests of the one before, which run in the background without followers."""
    lines = jsonl([line(f"line {i}", {"prompt": f"SLOW{i}", "max_tokens": 80}) for i in range(4)])
    with client_of(gateways.first) as client:
        batch = create(client, lines)
        while len(gateways.first.call(ends(gateways.first.pool))) < 4:
            time.sleep(0.02)
        gateways.first.call(stop_runner(gateways.first))
        client.batches.cancel(batch.id)
        gateways.first.call(start_runner(gateways.first))
        assert ended(client, batch).status == "cancelled"
        while None in (reasons := gateways.first.call(ends(gateways.first.pool))):
            time.sleep(0.02)
    assert reasons == [FinishReason.CANCELLED] * 4


async def ends(pool: RequestPool) -> list[FinishReason | None]:
    """The reasons for which the sequences in the pool ended; None for one that has not."""
    prefix = f"{pool._prefix}group:"
    names = [key.decode().removeprefix(prefix) async for key in pool._server._scripts.scan_iter(f"{prefix}*")]
    found = await pool.listen("a reader", {f"{name}/0": 0 for name in names}) if names else []
    return [snapshot.end and snapshot.end.reason for snapshot in found]
