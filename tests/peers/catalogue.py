"""Which test suites of others are run, in which versions, by which script."""

from __future__ import annotations

from dataclasses import dataclass

from tests.clients.catalogue import Client


@dataclass(frozen=True, slots=True)
class Source:
    """Folders of a repository `owner/name` at a tag or commit."""

    repository: str
    ref: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite. Without a `source`, its tests are in the first package of `client`."""

    client: Client
    source: Source | None = None

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def version(self) -> str:
        return self.source.ref if self.source else self.client.version


PYTEST = ("pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-timeout==2.4.0")
LANGCHAIN = (
    "langchain-tests==1.1.9",
    "langchain-openai==1.7.4",
    "langchain-anthropic==1.7.10",
    "pytest-timeout==2.4.0",
)
SERVERS = (
    *PYTEST,
    "openai==2.14.0",
    "anthropic==2.12.0",
    "requests==2.32.5",
    "transformers==5.23.0",
    "jinja2==3.1.6",
    "wget==3.2",
    "filelock==3.20.0",
    "prometheus-client==0.22.1",
    "regex==2025.11.3",
    "jsonschema==4.25.1",
)

SUITES = (
    Suite(
        Client("Open Responses", "open_responses.mjs", ("zod@3.25.76", "bun@1.4.5"), kind="npm"),
        Source("openresponses/openresponses", "92c12d96d7b61d6d15e2214daa5e9c6000ab6e1c", ("bin", "src")),
    ),
    Suite(Client("LangChain", "langchain_standard.py", LANGCHAIN, timeout=1800)),
    Suite(
        Client("llama.cpp", "servers.py", SERVERS, timeout=1800),
        Source("ggml-org/llama.cpp", "b11312", ("tools/server/tests",)),
    ),
    Suite(Client("vLLM", "servers.py", SERVERS, timeout=1800), Source("vllm-project/vllm", "v0.33.0", ("tests",))),
)


def chosen(words: list[str]) -> list[Suite]:
    """Suites whose name begins with one of the words; all for none.

    Raises:
        ValueError: a word that fits none.
    """
    for word in words:
        if not any(suite.name.lower().startswith(word.lower()) for suite in SUITES):
            raise ValueError(f"no suite {word!r}; there are: {', '.join(suite.name for suite in SUITES)}")
    return [suite for suite in SUITES if not words or suite.name.lower().startswith(tuple(w.lower() for w in words))]
