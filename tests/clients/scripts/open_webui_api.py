"""Open WebUI as a process in front of the server, asked as its pages ask it: by its API, with a user's token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from steps import API_KEY, BASE_URL, BIN, MODEL, QUESTION, SCRATCH, expect, free_port, process, step

WEBUI = f"http://127.0.0.1:{free_port()}"
ENVIRONMENT = {
    "DATA_DIR": str(SCRATCH / "data"),
    "WEBUI_SECRET_KEY": "of-this-run-alone",
    "OPENAI_API_BASE_URL": BASE_URL,
    "OPENAI_API_KEY": API_KEY,
    "ENABLE_OLLAMA_API": "False",
    "OFFLINE_MODE": "True",  # it fetches no model of its own
    "RAG_EMBEDDING_ENGINE": "openai",
    "ANONYMIZED_TELEMETRY": "False",
}
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
token = ""


def ask(path: str, body: Any = None) -> str:
    """The body of the answer. Raises HTTPError with what was said."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(WEBUI + path, data, headers), timeout=120) as reply:
            said: str = reply.read().decode()
            return said
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{path}: {error.code} {error.read().decode()[:300]}") from error


def main() -> None:
    command = [BIN / "open-webui", "serve", "--host", "127.0.0.1", "--port", WEBUI.rpartition(":")[2]]
    with process(command, f"{WEBUI}/health", timeout=600, **ENVIRONMENT):
        sign_up()
        use()


def sign_up() -> None:
    @step("first user and models")
    def _() -> None:
        global token
        user = {"name": "one", "email": "one@example.com", "password": "a-long-password-1"}
        token = json.loads(ask("/api/v1/auths/signup", user))["token"]
        models = [model["id"] for model in json.loads(ask("/api/models"))["data"]]
        expect(MODEL in models, models)


def use() -> None:
    @step("chat")
    def _() -> str:
        answer = json.loads(ask("/api/chat/completions", {"model": MODEL, "messages": MESSAGES, "max_tokens": 12}))
        expect(answer["choices"][0]["message"]["content"], answer)
        return str(answer["choices"][0]["message"]["content"])

    @step("chat stream")
    def _() -> None:
        body = {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": 12,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        said = ask("/api/chat/completions", body)
        events = [line.removeprefix("data: ") for line in said.splitlines() if line.startswith("data: ")]
        expect(events and events[-1] == "[DONE]", said[-300:])
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk.get("choices"))
        expect(text and any(chunk.get("usage") for chunk in chunks), said[-300:])

    @step("title of a chat")
    def _() -> None:
        messages = [*MESSAGES, {"role": "assistant", "content": "Paris."}]
        answer = json.loads(ask("/api/v1/tasks/title/completions", {"model": MODEL, "messages": messages}))
        expect(answer["choices"][0]["message"]["content"], answer)


main()
