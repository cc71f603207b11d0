"""Health, load, metrics, version, tokenizer, and the headers of every response."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from stack import Stack
from tiny_text import TEMPLATE
from waiting import wait_until

from services.settings.settings import Settings


def samples(http: httpx.Client) -> dict[str, float]:
    page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    return {s.name: s.value for f in text_string_to_metric_families(page.text) for s in f.samples}


def test_version_names_what_tokens_depend_on(http: httpx.Client, stack: Stack) -> None:
    version = http.get("/version").json()
    assert version["numerics"] == "echo"
    assert version["revision"] == stack.info.revision


def test_the_length_is_the_servers(redis_url: str, tiny_folder: Path) -> None:
    """Not the model's, which is 512."""
    with Stack(redis_url, "shorter", tiny_folder, Settings(max_model_len=128)) as stack:
        http = stack.http
        (listed,), one = http.get("/v1/models").json()["data"], http.get("/v1/models/tiny").json()
        tokens = http.post("/tokenize", json={"prompt": "hello"}).json()
        assert [each["max_model_len"] for each in (listed, one, tokens)] == [128] * 3
        assert http.get("/tokenizer_info").json()["model_max_length"] == 128


def test_latencies_are_counted(redis_url: str, tiny_folder: Path) -> None:
    counted = {
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": 6,
        "vllm:request_time_per_output_token_seconds_count": 1,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_prompt_tokens_sum": 1,
        "vllm:request_generation_tokens_sum": 7,
        "vllm:request_params_max_tokens_sum": 7,
        "vllm:request_max_num_generation_tokens_sum": 7,
        "vllm:generation_tokens_total": 7,
    }
    with Stack(redis_url, "counted", tiny_folder, Settings()) as stack:
        http = stack.http
        assert http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 7}).status_code == 200
        wait_until(lambda: counted.items() <= samples(http).items())
        assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "priority": 3}).status_code == 200
        first = 'vllm:time_to_first_token_seconds_count{{model_name="tiny",priority="{}",tenant="default"}} 1.0'
        queue = 'vllm:request_queue_time_seconds_count{{model_name="tiny",priority="{}",tenant="default"}} 1.0'
        lines = {line.format(priority) for line in (first, queue) for priority in (0, 3)}
        wait_until(lambda: lines <= set(http.get("/metrics").text.splitlines()))


def test_a_gateway_reports_itself(http: httpx.Client) -> None:
    names = ("orca:gateway_memory_bytes", "orca:gateway_cpu_seconds_total")
    wait_until(lambda: all(samples(http).get(name, 0) > 0 for name in names))
    page = http.get("/metrics").text
    gateways = {s.labels["gateway"] for f in text_string_to_metric_families(page) for s in f.samples if s.name in names}
    assert len(gateways) == samples(http)["orca:gateways"]


def test_tokenize_and_back(http: httpx.Client, stack: Stack) -> None:
    made = http.post("/tokenize", json={"prompt": "hello né<eos>"}).json()
    assert made["tokens"] == stack.tokenizer.encode("hello né<eos>")
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == 512
    assert http.post("/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": "hello né<eos>"}


def test_token_strs_are_those_of_the_vocabulary(http: httpx.Client, stack: Stack, tiny_folder: Path) -> None:
    """As vLLM has them from transformers."""
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tiny_folder / "tokenizer.json"))
    text = "hello world né 🐳<eos>"
    made = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert made["token_strs"] == theirs.convert_ids_to_tokens(made["tokens"])
    assert made["token_strs"][:2] == ["hello", "Ġworld"]
    assert made["token_strs"][-1] == "<eos>"
    for asked in (False, None):
        assert http.post("/tokenize", json={"prompt": text, "return_token_strs": asked}).json()["token_strs"] is None


def test_long_texts_are_tokenized_too(http: httpx.Client) -> None:
    """Long texts are tokenized off the event loop, with the same tokens."""
    assert http.post("/tokenize", json={"prompt": "hello world" * 500}).json()["count"] == 1000


def test_the_client_s_request_id_is_returned(http: httpx.Client) -> None:
    headers = {"x-request-id": "mine-17"}
    for response in (
        http.get("/health", headers=headers),
        http.get("/nowhere", headers=headers),
        http.post("/v1/completions", content=b"{", headers=headers),
        http.post("/v1/completions", json={"prompt": "a", "stream": True}, headers=headers),
    ):
        assert response.headers["x-request-id"] == "mine-17"
    assert "x-request-id" not in http.get("/health").headers


def test_other_names_of_health(http: httpx.Client) -> None:
    for method, path in (("GET", "/ping"), ("POST", "/ping"), ("GET", "/v1/health")):
        assert http.request(method, path).status_code == 200


def test_load_counts_current_requests(http: httpx.Client) -> None:
    assert http.get("/load").json() == {"server_load": 0}
    body = {"prompt": "SLOWhello", "max_tokens": 300, "stream": True, "n": 2}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert http.get("/load").json() == {"server_load": 1}
    wait_until(lambda: http.get("/load").json() == {"server_load": 0})


def test_tokenizer_info(http: httpx.Client, stack: Stack, tiny_folder: Path) -> None:
    info = http.get("/tokenizer_info").json()
    assert info["chat_template"] == TEMPLATE
    assert info["eos_token"] == "<eos>"
    assert info["additional_special_tokens"] == ["<user>", "<assistant>", "<system>"]
    assert info["vocab_size"] == stack.tokenizer.vocab_size
    assert info["model_max_length"] == 512
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert str(tiny_folder) not in str(info)
