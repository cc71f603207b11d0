"""Cohere's package, whose rerank is at `/v2/rerank`."""

from __future__ import annotations

import cohere
from steps import API_KEY, MODEL, URL, expect, raised, step

TEXTS = ["Rain in Rome.", "It rains.", "A fish."]
client = cohere.ClientV2(API_KEY, base_url=URL)


@step("rerank")
def _() -> str:
    made = client.rerank(model=MODEL, query=TEXTS[2], documents=TEXTS, top_n=2)
    scores = [one.relevance_score for one in made.results]
    expect(made.results[0].index == 2 and len(scores) == 2 and scores[0] >= scores[1], made)
    return str(scores)


@step("async client")
async def _() -> None:
    async with cohere.AsyncClientV2(API_KEY, base_url=URL) as own:
        expect(len((await own.rerank(model=MODEL, query=TEXTS[0], documents=TEXTS)).results) == 3)


@step("errors as exceptions")
def _() -> None:
    nothing = {"model": "nothing", "query": TEXTS[0], "documents": TEXTS}
    raised(cohere.NotFoundError, lambda: client.rerank(**nothing))
