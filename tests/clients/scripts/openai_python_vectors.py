"""Embeddings by the official package for Python; scores and rankings, for which it has no method, by its `post`."""

from __future__ import annotations

import math
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from steps import API_KEY, BASE_URL, MODEL, expect, raised, step

client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
TEXTS = ["Rain in Rome.", "It rains.", "A fish."]


def embed(input: Any, **more: Any) -> Any:
    return client.embeddings.create(model=MODEL, input=input, **more)


@step("embeddings: a text, a list, token ids")
def _() -> str:
    many = embed(TEXTS)
    expect([one.index for one in many.data] == [0, 1, 2] and many.usage.prompt_tokens > 0, many)
    expect(all(abs(math.hypot(*one.embedding) - 1) < 1e-4 for one in many.data))
    alone = embed(TEXTS[1]).data[0].embedding
    expect(max(abs(a - b) for a, b in zip(alone, many.data[1].embedding, strict=True)) < 1e-5)
    expect(len(embed([[5, 6, 7], [8, 9]]).data) == 2)
    return f"{len(alone)} numbers"


@step("embeddings: floats are what base64 holds")
def _() -> None:
    floats = embed(TEXTS[0], encoding_format="float").data[0].embedding  # without it the package asks for base64
    expect(max(abs(a - b) for a, b in zip(floats, embed(TEXTS[0]).data[0].embedding, strict=True)) < 1e-6)


@step("embeddings: async client")
async def _() -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as own:
        expect((await own.embeddings.create(model=MODEL, input=TEXTS)).data)


@step("score and rerank")
def _() -> None:
    scores = client.post("/score", body={"model": MODEL, "text_1": TEXTS[0], "text_2": TEXTS}, cast_to=object)["data"]
    expect(len(scores) == 3 and abs(scores[0]["score"] - 1) < 1e-5, scores)
    ranked = client.post("/rerank", body={"model": MODEL, "query": TEXTS[0], "documents": TEXTS}, cast_to=object)
    order = [one["index"] for one in ranked["results"]]
    expect(order == sorted(range(3), key=lambda i: -scores[i]["score"]) and order[0] == 0, ranked, scores)


@step("what cannot run is a BadRequestError")
def _() -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    raised(openai.BadRequestError, client.chat.completions.create, model=MODEL, messages=messages)
    raised(openai.BadRequestError, embed, input=TEXTS, dimensions=1_000_000)
    raised(openai.BadRequestError, embed, input=["word " * 10_000])
