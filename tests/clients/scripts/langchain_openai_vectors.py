"""LangChain's `OpenAIEmbeddings`, and a store that is searched by them."""

from __future__ import annotations

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from steps import API_KEY, BASE_URL, MODEL, expect, step

TEXTS = ["Rain in Rome.", "It rains.", "A fish."]
# its check of lengths counts the tokens of OpenAI's own models
embeddings = OpenAIEmbeddings(
    model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_retries=0, check_embedding_ctx_length=False
)


@step("embed_documents and embed_query")
def _() -> str:
    found, one = embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[1])
    expect(len(found) == 3 and max(abs(a - b) for a, b in zip(found[1], one, strict=True)) < 1e-5, found)
    return f"{len(one)} numbers"


@step("aembed_documents")
async def _() -> None:
    expect(len(await embeddings.aembed_documents(TEXTS)) == 3)


@step("a store that is searched")
def _() -> None:
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    expect(store.similarity_search(TEXTS[2], k=1)[0].page_content == TEXTS[2])
