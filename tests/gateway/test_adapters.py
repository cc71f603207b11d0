"""LoRA adapters by vLLM's routes: loaded from a folder of the operator's, named as models, replaced and unloaded."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import batch_client
import httpx
import openai
import pytest
from batch_client import create, ended, entries, jsonl, line
from prometheus_client.parser import text_string_to_metric_families
from sse_client import RESUMABLE, read
from stack import NAME, Server, Stack
from test_several_models import Both
from tiny_models import make_tiny_model
from tiny_text import make_folder
from waiting import wait_until

from cli import models, status
from gateway.http.headers import Caller
from gateway.pool_client.adapters import held
from load.random_adapter import write_adapter
from services.adapters.peft import CONFIG, WEIGHTS
from services.adapters.registry import Registry
from services.adapters.store import folder_of, locked, registry_of
from services.metrics.declared import LORA
from services.models.linears import load_linears
from services.pool.shards import in_shard
from services.settings.constants import Constants
from services.settings.settings import Settings

OPERATOR = {"Authorization": "Bearer operator"}
ALICE, BOB = {"Authorization": "Bearer alice"}, {"Authorization": "Bearer bob"}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, whose linear layers are known, with the tokenizer of the other tests."""
    made = make_tiny_model(tmp_path_factory.mktemp("llama"), "llama")
    config = json.loads((made / "config.json").read_text())
    make_folder(made)
    end = json.loads((made / "config.json").read_text())["eos_token_id"]
    (made / "config.json").write_text(json.dumps(config | {"eos_token_id": end}))
    return made


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(
        enable_lora=True,
        lora_dir=str(tmp_path_factory.mktemp("adapters")),
        files_dir=str(tmp_path_factory.mktemp("files")),
        max_lora_rank=8,
        operator_api_key=("operator",),
        api_keys={"alice": "alice", "bob": "bob"},
        constants=Constants(max_adapters=3, max_adapter_bytes=100_000),
    )


@pytest.fixture(scope="module")
def stack(redis_url: str, folder: Path, settings: Settings) -> Iterator[Stack]:
    with Stack(redis_url, f"adapters-{secrets.token_hex(4)}", folder, settings) as stack:
        ready(stack)
        yield stack


@pytest.fixture(scope="module")
def sources(settings: Settings, folder: Path) -> Path:
    """The operator's folder, with the adapters `one` to `four`."""
    linears = load_linears(folder, settings.cache_dir)
    for seed, name in enumerate(("one", "two", "three", "four")):
        write_adapter(Path(settings.lora_dir) / name, linears, seed)
    return Path(settings.lora_dir)


@pytest.fixture(autouse=True)
def _empty(stack: Stack, sources: Path, http: httpx.Client) -> Iterator[None]:
    yield
    for name in registry(stack).adapters:
        assert unload(http, name).is_success


def test_the_operator_sees_all_adapters_and_a_tenant_its_own(
    stack: Stack, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    load(http, "sql", "one", tenants=["bob"])
    load(http, "law", "two")
    told = {card["id"]: card.get("tenants") for card in http.get("/v1/models", headers=OPERATOR).json()["data"]}
    assert told == {NAME: None, "law": [], "sql": ["bob"]}
    for name, tenants in told.items():
        card = http.get(f"/v1/models/{name}", headers=OPERATOR).json()
        assert (card["id"], card.get("tenants")) == (name, tenants)
    assert http.get("/v1/models/nope", headers=OPERATOR).status_code == 404
    assert [http.get("/v1/models/sql", headers=key).status_code for key in (ALICE, BOB)] == [404, 200]
    models.run(["--url", stack.url, "--api-key", "operator"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("tokens")[2].strip() for line in lines] == [
        "",
        f"adapter of {NAME}",
        f"adapter of {NAME}, for bob",
    ]
    missing = [chat(http, "nope", key).json()["error"]["message"] for key in (ALICE, BOB)]
    assert [text.partition("serves ")[2] for text in missing] == [
        f"'{NAME}' or 'law'.",
        f"'{NAME}' or 'law' or 'sql'.",
    ]
    assert chat(http, NAME, OPERATOR).status_code == 401


def ready(stack: Stack) -> None:
    wait_until(lambda: httpx.get(f"{stack.url}/ready").is_success)


def registry(stack: Stack) -> Registry:
    return Registry.unpack(stack.call(stack.pool.adapters()))


def load(http: httpx.Client, name: str, path: object, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path)} | more
    return http.post("/v1/load_lora_adapter", json=body, headers=OPERATOR)


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=OPERATOR)


def chat(http: httpx.Client, model: str, key: dict[str, str] = ALICE, **more: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json=CHAT | {"model": model} | more, headers=key)


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


def ran_with(stack: Stack) -> str:
    """The digest that the engine got with the last request."""
    return stack.engine.asked[-1].sampling.adapter


def test_an_adapter_is_a_model_of_its_own(stack: Stack, http: httpx.Client, other: httpx.Client) -> None:
    loaded = load(http, "sql", "one")
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    digest = registry(stack).adapters["sql"].digest
    for gateway in (http, other):  # the other one, too, at the next request
        assert chat(gateway, "sql").json()["model"] == "sql"
        assert ran_with(stack) == digest
    listed = {card["id"]: card for card in other.get("/v1/models", headers=BOB).json()["data"]}
    assert (listed["sql"]["parent"], listed["sql"]["root"]) == (NAME, f"{stack.settings.lora_dir}/one")
    assert (listed[NAME]["parent"], list(listed)) == (None, [NAME, "sql"])
    assert other.get("/v1/models/sql", headers=BOB).json() == listed["sql"]
    assert chat(other, NAME).json()["model"] == NAME
    assert ran_with(stack) == ""
    removed = unload(http, "sql")
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert (chat(other, "sql").status_code, chat(http, "sql").status_code) == (404, 404)
    assert error_of(unload(other, "sql")) == (404, "lora_name", "The lora adapter 'sql' cannot be found.")


@pytest.mark.parametrize("stream", [False, True])
def test_all_routes_take_its_name(stack: Stack, http: httpx.Client, stream: bool) -> None:
    load(http, "sql", "one")
    bodies = {
        "/v1/completions": {"prompt": "hello", "max_tokens": 2},
        "/v1/chat/completions": CHAT,
        "/v1/responses": {"input": "hello", "max_output_tokens": 2},
        "/v1/messages": CHAT,
    }
    for path, body in bodies.items():
        answer = http.post(path, json=body | {"model": "sql", "stream": stream}, headers=ALICE)
        assert answer.is_success, answer.text
        assert '"model":"sql"' in answer.text.replace(" ", "")
        assert ran_with(stack) == registry(stack).adapters["sql"].digest
    scored = {"model": "sql", "prompt": "hello", "max_tokens": 0, "prompt_logprobs": 1}  # computes its prompt, too
    assert http.post("/v1/completions", json=scored, headers=ALICE).is_success
    assert ran_with(stack)
    counts = {
        "/tokenize": {"prompt": "hello"},
        "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
        "/v1/responses/input_tokens": {"input": "hello"},
    }
    for path, body in counts.items():
        assert http.post(path, json=body | {"model": "sql"}, headers=ALICE).is_success
        assert http.post(path, json=body | {"model": "other"}, headers=ALICE).status_code == 404


def test_a_replaced_adapter_stays_with_the_requests_that_have_it(
    stack: Stack, http: httpx.Client, other: httpx.Client
) -> None:
    load(http, "sql", "one")
    status, param, text = error_of(load(other, "sql", "two"))
    assert (status, param) == (400, "lora_name")
    assert "already been loaded" in text
    first = registry(stack).adapters["sql"].digest
    body = CHAT | {"model": "sql", "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "SLOW"}]}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=ALICE | RESUMABLE) as streamed:
        assert load(other, "sql", "two", load_inplace=True).is_success
        second = registry(stack).adapters["sql"].digest
        assert first != second
        assert chat(http, "sql").is_success
        assert [new.sampling.adapter for new in stack.engine.asked[-2:]] == [first, second]
        unload(http, "sql")
        got = streamed.read().decode()
    assert '"finish_reason":"length"' in got


def test_metrics_and_status_name_adapters(stack: Stack, http: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    load(http, "sql", "one")
    load(http, "idle", "two")
    load(http, "same", "one")  # as sql
    body = CHAT | {"model": "sql", "stream": True, "max_tokens": 200, "messages": [{"role": "user", "content": "SLOW"}]}

    def names() -> tuple[str, str]:
        families = text_string_to_metric_families(http.get("/metrics").text)
        [labels] = [sample.labels for one in families for sample in one.samples if sample.name == LORA]
        assert labels["max_lora"] == "3"
        return labels["running_lora_adapters"], labels["waiting_lora_adapters"]

    with http.stream("POST", "/v1/chat/completions", json=body, headers=ALICE):
        wait_until(lambda: names() == ("same,sql", ""))
    wait_until(lambda: names() == ("", ""))
    status.run(["--url", stack.url, "--api-key", "alice"])
    assert "adapters: idle, same, sql" in capsys.readouterr().out


def test_a_stream_is_continued_after_its_adapter_was_unloaded(stack: Stack, http: httpx.Client) -> None:
    load(http, "sql", "one")
    key = {"Idempotency-Key": secrets.token_hex(4)}
    body = CHAT | {"model": "sql", "stream": True}
    stream = read(http.post("/v1/chat/completions", json=body, headers=ALICE | key))
    asked = len(stack.engine.asked)
    unload(http, "sql")
    for more in (key | {"Last-Event-ID": stream[0].id or ""}, key, {"Last-Event-ID": stream[0].id or ""}):
        again = http.post("/v1/chat/completions", json=body, headers=ALICE | more)
        assert again.is_success, again.text
        assert read(again)[-2].id == stream[-2].id
    unknown = {"Idempotency-Key": secrets.token_hex(4)}
    assert http.post("/v1/chat/completions", json=body, headers=ALICE | unknown).status_code == 404
    load(http, "sql", "two")  # of the same name: the key still names the request that had the former one
    assert read(http.post("/v1/chat/completions", json=body, headers=ALICE | key))[-2].id == stream[-2].id
    assert len(stack.engine.asked) == asked


def test_a_line_is_found_in_the_shard_and_model_that_it_was_accepted_in(stack: Stack, http: httpx.Client) -> None:
    load(http, "sql", "one")
    accepted = chat(http, "sql").json()["id"]
    unload(http, "sql")
    adapters, caller = stack.app.state.gateway.first.adapters, Caller("alice")
    for earlier in (accepted, in_shard(accepted, 2, "abcdef")):  # a batch of another model has other ids
        assert stack.call(adapters.named_by("sql", caller, earlier)).adapter
    assert stack.call(adapters.named_by("sql", caller, accepted[:-1])).adapter is None


def test_who_sees_an_adapter_is_said_when_it_is_loaded(http: httpx.Client) -> None:
    assert load(http, "hers", "one", tenants=["alice"]).is_success
    assert (chat(http, "hers").status_code, chat(http, "hers", BOB).status_code) == (200, 404)
    ids = [{card["id"] for card in http.get("/v1/models", headers=key).json()["data"]} for key in (ALICE, BOB)]
    assert ids == [{NAME, "hers"}, {NAME}]
    assert http.get("/v1/models/hers", headers=BOB).status_code == 404


def test_it_is_still_there_after_everything_has_started_again(stack: Stack, http: httpx.Client) -> None:
    load(http, "sql", "one")
    with stack.second() as later, httpx.Client(base_url=later.url, timeout=20) as client:
        ready(later)
        assert chat(client, "sql").json()["model"] == "sql"
    digest = registry(stack).adapters["sql"].digest
    kept = folder_of(stack.settings.files_folder, digest)
    assert sorted(path.name for path in kept.iterdir()) == [CONFIG, WEIGHTS]


def test_of_two_loads_at_once_one_registers(stack: Stack, http: httpx.Client, other: httpx.Client) -> None:
    with ThreadPoolExecutor() as threads:
        same = list(threads.map(lambda client: load(client, "sql", "one").status_code, (http, other)))
        each = list(threads.map(lambda i: load((http, other)[i % 2], f"n{i}", "one").status_code, range(2)))
    assert (sorted(same), each) == ([200, 400], [200, 200])
    assert registry(stack).adapters.keys() == {"sql", "n0", "n1"}
    assert len({adapter.digest for adapter in registry(stack).adapters.values()}) == 1


def broken(sources: Path, name: str, **files: bytes | None) -> Path:
    """A copy of the adapter `one` with other files; None: without it."""
    copy = sources / name
    copy.mkdir(exist_ok=True)
    for file in (CONFIG, WEIGHTS):
        (copy / file).write_bytes((sources / "one" / file).read_bytes())
    for file, content in files.items():
        path = copy / {"config": CONFIG, "weights": WEIGHTS, "pickle": "adapter_model.bin"}[file]
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    return copy


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config": None}, "has no adapter_config.json"),
        ({"config": b"{"}, "adapter_config.json"),
        ({"config": b'{"peft_type": "LOHA"}'}, "LOHA"),
        ({"weights": None}, "has no adapter_model.safetensors"),
        ({"weights": None, "pickle": b"x"}, "adapter_model.bin is a pickle"),
        ({"weights": b"x" * 50}, "is broken"),
        ({"weights": b"x" * 100_001}, "adapter_model.safetensors is too large"),
        ({"config": b'{"peft_type": "LORA", "r": 9, "lora_alpha": 1}'}, "rank 9 .* over the limit of 8"),
    ],
)
def test_of_a_broken_adapter_nothing_is_registered(
    stack: Stack, http: httpx.Client, sources: Path, files: dict[str, bytes | None], said: str
) -> None:
    before, content = registry(stack), sorted((stack.settings.files_folder / "adapters").iterdir())
    copy = broken(sources, "broken", **files)
    refused = load(http, "sql", "broken")
    status, param, text = error_of(refused)
    assert (status, param) == (400, "lora_path")
    assert ".draft" not in text
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(text)
    assert registry(stack) == before
    assert sorted((stack.settings.files_folder / "adapters").iterdir()) == content
    assert copy.exists()


def test_only_folders_below_the_operator_s_are_read(
    stack: Stack, http: httpx.Client, sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").symlink_to(sources / "one")
    (sources / "link").unlink(missing_ok=True)
    (sources / "link").symlink_to(tmp_path)
    for path in (tmp_path, "..", "../x", "/etc", "link"):
        status, _, text = error_of(load(http, "sql", path))
        assert status in (400, 404), text
    assert "lora_dir" in error_of(load(http, "sql", tmp_path))[2]
    copy = broken(sources, "linked", weights=None)
    (tmp_path / "secret").write_bytes(b"secret")
    (copy / WEIGHTS).symlink_to(tmp_path / "secret")
    assert "is a link that leads out of" in error_of(load(http, "sql", "linked"))[2]
    (copy / WEIGHTS).unlink()
    os.mkfifo(copy / WEIGHTS)
    assert "is no file" in error_of(load(http, "sql", "linked"))[2]
    (copy / WEIGHTS).unlink()
    (copy / WEIGHTS).symlink_to(sources / "one" / WEIGHTS)  # as in the hub's cache
    assert load(http, "sql", copy).is_success


def test_names_and_count_are_bounded(http: httpx.Client) -> None:
    assert "is a model's name" in error_of(load(http, NAME, "one"))[2]
    assert "printable" in error_of(load(http, "a\nb", "one"))[2]
    assert error_of(load(http, "sql", "nowhere"))[0] == 404
    assert error_of(http.post("/v1/load_lora_adapter", json={"lora_name": "sql"}, headers=OPERATOR))[1] == "lora_path"
    for name in ("one", "two", "three"):
        assert load(http, name, name).is_success
    assert error_of(load(http, "four", "four"))[2] == "3 adapters are loaded, the maximum is 3; unload one first."
    assert load(http, "three", "four", load_inplace=True).is_success


def test_files_go_when_nobody_names_them(stack: Stack, http: httpx.Client) -> None:
    files, adapters = stack.settings.files_folder, stack.app.state.gateway.first.adapters
    load(http, "sql", "three")
    digest = registry(stack).adapters["sql"].digest
    body = CHAT | {"model": "sql", "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "SLOW"}]}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=ALICE):
        unload(http, "sql")
        stack.call(adapters.clean(0.0))
        assert folder_of(files, digest).exists()  # the open request has it
    wait_until(lambda: not stack.call(stack.pool.adapted()))
    stack.call(adapters.clean())
    assert folder_of(files, digest).exists()  # a request may be on its way
    stack.call(adapters.clean(0.0))
    assert not folder_of(files, digest).exists()
    assert digest not in registry(stack).unnamed
    assert load(http, "sql", "three").is_success
    assert folder_of(files, digest).exists()


def test_a_pool_that_lost_its_data_gets_the_adapters_again(
    redis_url: str, folder: Path, settings: Settings, sources: Path
) -> None:
    """Those of the configuration and of routes, and none that was unloaded or replaced; or only those of the
    configuration, if the file is lost, too."""
    modules = Settings(enable_lora=True, lora_modules=(f"one={sources / 'one'}",)).lora_modules
    own = settings.model_copy(update={"lora_modules": modules})
    with Stack(redis_url, f"lost-{secrets.token_hex(4)}", folder, own) as stack:
        ready(stack)
        adapters = stack.app.state.gateway.first.adapters
        for name, path, inplace in (("sql", "two", False), ("law", "three", False), ("sql", "three", True)):
            stack.call(adapters.load(name, path, inplace))
        stack.call(adapters.unload("law"))
        before = registry(stack)
        for lost in range(2):
            stack.call(stack.pool._server.command("DEL", f"{stack.pool._prefix}adapters"))
            stack.call(adapters.tend())
            assert registry(stack) == before, lost
            stack.call(adapters.load("law", "two"))  # changes go on from there
            stack.call(adapters.unload("law"))
            before = registry(stack)
        registry_of(own.files_folder, stack.pool.name).unlink()
        stack.call(stack.pool._server.command("DEL", f"{stack.pool._prefix}adapters"))
        stack.call(adapters.tend())
        assert registry(stack).adapters.keys() == {"one"}


def test_files_that_cannot_be_removed_are_looked_at_again_later(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        failed, loop = asyncio.Event(), asyncio.get_running_loop()

        def fail(files: Path) -> None:
            loop.call_soon_threadsafe(failed.set)
            raise PermissionError("denied")

        monkeypatch.setattr("services.adapters.store.remove_stale", fail)
        running = asyncio.create_task(stack.app.state.gateway.first.adapters.run())
        await failed.wait()
        ended, _ = await asyncio.wait({running}, timeout=0.2)
        running.cancel()
        assert not ended

    stack.call(scenario())


def test_each_pool_has_files_of_its_own(
    stack: Stack, http: httpx.Client, redis_url: str, folder: Path, settings: Settings
) -> None:
    with Stack(redis_url, f"beside-{secrets.token_hex(4)}", folder, settings) as beside:
        client = beside.http
        ready(beside)
        for each in (http, client):
            assert load(each, "sql", "one").is_success
        digest = registry(beside).adapters["sql"].digest
        unload(http, "sql")
        stack.call(stack.app.state.gateway.first.adapters.clean(0.0))
        assert folder_of(settings.files_folder, digest).exists()


def test_loads_that_wait_for_the_lock_hold_no_thread(tmp_path: Path) -> None:
    async def load() -> None:
        async with held(tmp_path):
            pass

    async def scenario() -> None:
        with locked(tmp_path, alone=True):
            loads = [asyncio.create_task(load()) for _ in range(64)]  # more than there are threads
            await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.to_thread(str), 60)
        await asyncio.gather(*loads)

    asyncio.run(scenario())


def test_the_configuration_s_adapters(
    redis_url: str, folder: Path, settings: Settings, sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = f"modules-{secrets.token_hex(4)}"

    def names(*modules: str, change: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> dict[str, str]:
        own = settings.model_copy(
            update={"lora_modules": Settings(enable_lora=True, lora_modules=modules).lora_modules}
        )
        with Stack(redis_url, pool, folder, own) as stack, httpx.Client(base_url=stack.url, timeout=20) as client:
            ready(stack)
            for name in change:
                assert load(client, name, "four", load_inplace=True).is_success
            for name in drop:
                assert unload(client, name).is_success
            return {name: Path(one.path).name for name, one in registry(stack).adapters.items()}

    one, two, gone = (f"{name}={sources / name}" for name in ("one", "two", "gone"))
    assert names(one, two) == {"one": "one", "two": "two"}
    assert names(one, two, change=("one", "own")) == {"one": "four", "two": "two", "own": "four"}
    assert names(one, two) == {"one": "four", "two": "two", "own": "four"}  # unchanged: the routes' changes hold
    assert names(two) == {"one": "four", "two": "two", "own": "four"}
    assert names(gone, f"tiny={sources / 'one'}") == {"one": "four", "own": "four"}
    assert names(one, two, drop=("two",)) == {"one": "one", "own": "four"}
    assert names(one) == {"one": "one", "own": "four"}
    assert names(one, two)["two"] == "two"  # it has left the list and is new in it
    said = " ".join(caplog.messages)
    assert "lora_modules: gone cannot be loaded" in said
    assert "is the model itself" in said


def test_it_is_refused_where_no_engine_serves_adapters(
    redis_url: str, folder: Path, settings: Settings, sources: Path
) -> None:
    stack = Stack(redis_url, f"without-{secrets.token_hex(4)}", folder, settings)
    figures = stack.figures
    object.__setattr__(figures, "features", tuple(name for name in figures.features if name != "adapter"))
    with stack, httpx.Client(base_url=stack.url, timeout=20) as client:
        ready(stack)
        assert load(client, "sql", "one").is_success
        status, param, text = error_of(chat(client, "sql"))
        assert (status, param) == (400, "model")
        assert "enable_lora" in text
        assert chat(client, NAME).is_success


def test_without_enable_lora_there_are_none(redis_url: str, folder: Path, settings: Settings) -> None:
    own = Settings(operator_api_key=("operator",))
    with Stack(redis_url, f"off-{secrets.token_hex(4)}", folder, own) as stack:
        client = stack.http
        assert "enable_lora" in error_of(load(client, "sql", "one"))[2]
        assert "enable_lora" in error_of(unload(client, "sql"))[2]


def test_each_shard_has_the_registry(
    redis_url: str, folder: Path, settings: Settings, sources: Path, tmp_path: Path
) -> None:
    with Server(tmp_path) as server:
        name, urls = f"sharded-{secrets.token_hex(4)}", f"0={redis_url} 1={server.url}"
        with Stack(urls, name, folder, settings) as stack, httpx.Client(base_url=stack.url, timeout=20) as client:
            ready(stack)
            assert load(client, "sql", "one").is_success
            held = [stack.call(pool.adapters()) for pool in stack.pools.values()]
            assert held[0] == held[1]
            empty = stack.pools[1]
            stack.call(empty._server.command("DEL", f"{empty._prefix}adapters"))
            with stack.second() as later:  # as after a shard was added
                ready(later)
            assert stack.call(empty.adapters()) == held[0]
            first = stack.pools[0]
            stack.call(first._server.command("DEL", f"{first._prefix}adapters"))
            stack.call(stack.app.state.gateway.first.adapters.tend())
            assert stack.call(first.adapters()) == held[0]
            server.call(server.server.stop())
            assert chat(client, "sql").is_success
            assert unload(client, "sql").status_code == 503
            server.call(server.server.start())
            wait_until(lambda: unload(client, "sql").is_success, 20)
            held = [stack.call(pool.adapters()) for pool in stack.pools.values()]
            assert held[0] == held[1]


def test_each_of_two_models_has_adapters_of_its_own(
    redis_url: str, folder: Path, settings: Settings, sources: Path, tmp_path: Path
) -> None:
    models = [{"model": "a", "served_model_name": NAME}, {"model": "b", "served_model_name": "beta"}]
    listed = Settings(
        models=models,
        enable_lora=True,
        lora_dir=settings.lora_dir,
        files_dir=str(tmp_path),
        operator_api_key=("operator",),
    )
    pools = [f"two-{secrets.token_hex(4)}" for _ in models]
    one, two = (Stack(redis_url, pool, folder, own) for pool, own in zip(pools, listed.each, strict=True))
    with one, two, Both(redis_url, folder, listed, [one, two]) as both, httpx.Client(base_url=both.url) as client:
        ready(both)
        assert load(client, "sql", "one", model="beta").is_success
        assert load(client, "law", "two").is_success
        assert "is a model's name" in error_of(load(client, "beta", "two"))[2]
        assert "'sql' is an adapter of the model 'beta'" in error_of(load(client, "sql", "two"))[2]
        assert [registry(each).adapters.keys() for each in (one, two)] == [{"law"}, {"sql"}]
        for name, stack in (("sql", two), ("law", one)):
            assert chat(client, name, {}).json()["model"] == name
            assert ran_with(stack) == registry(stack).adapters[name].digest
        cards = client.get("/v1/models").json()["data"]
        assert {card["id"]: card["parent"] for card in cards if card["parent"]} == {"sql": "beta", "law": NAME}
        assert unload(client, "sql").is_success
        assert chat(client, "sql", {}).status_code == 404


def test_lines_of_a_batch_name_adapters(stack: Stack, http: httpx.Client) -> None:
    load(http, "sql", "one")
    lines = [line(name, CHAT | {"model": name}, batch_client.CHAT) for name in ("sql", NAME, "other")]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="alice", max_retries=0) as client:
        batch = ended(client, create(client, jsonl(lines), batch_client.CHAT))
        answers, [error] = entries(client, batch.output_file_id), entries(client, batch.error_file_id)
    assert sorted(one["response"]["body"]["model"] for one in answers) == ["sql", NAME]
    assert (error["custom_id"], error["response"]["status_code"]) == ("other", 404)
