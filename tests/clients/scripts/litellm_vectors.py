"""LiteLLM's `embedding` and `rerank`."""

from __future__ import annotations

import litellm
from steps import API_KEY, BASE_URL, MODEL, URL, expect, step

TEXTS = ["Rain in Rome.", "It rains.", "A fish."]


@step("embedding: openai/ and hosted_vllm/")
def _() -> None:
    for name in ("openai", "hosted_vllm"):
        made = litellm.embedding(
            model=f"{name}/{MODEL}", api_base=BASE_URL, api_key=API_KEY, input=TEXTS, encoding_format="float"
        )
        expect(len(made.data) == 3 and len(made.data[0]["embedding"]) > 1, made)


@step("aembedding")
async def _() -> None:
    made = await litellm.aembedding(
        model=f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, input=TEXTS, encoding_format="float"
    )
    expect(len(made.data) == 3, made)


@step("rerank: hosted_vllm/ and jina_ai/")
def _() -> None:
    for name, base in (("hosted_vllm", URL), ("jina_ai", URL)):
        made = litellm.rerank(
            model=f"{name}/{MODEL}", api_base=base, api_key=API_KEY, query=TEXTS[2], documents=TEXTS, top_n=2
        )
        expect(made.results[0]["index"] == 2 and len(made.results) == 2, made)
