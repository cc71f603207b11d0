"""LlamaIndex's `OpenAILikeEmbedding`."""

from __future__ import annotations

from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from steps import API_KEY, BASE_URL, MODEL, expect, step

TEXTS = ["Rain in Rome.", "It rains.", "A fish."]
embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE_URL, api_key=API_KEY, max_retries=0)


@step("get_text_embedding and its batch")
def _() -> str:
    found, one = embeddings.get_text_embedding_batch(TEXTS), embeddings.get_text_embedding(TEXTS[1])
    expect(len(found) == 3 and max(abs(a - b) for a, b in zip(found[1], one, strict=True)) < 1e-5, found)
    return f"{len(one)} numbers"


@step("aget_query_embedding")
async def _() -> None:
    expect(await embeddings.aget_query_embedding(TEXTS[0]))


@step("an index that is searched")
def _() -> None:
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embeddings)
    expect(index.as_retriever(similarity_top_k=1).retrieve(TEXTS[2])[0].text == TEXTS[2])
