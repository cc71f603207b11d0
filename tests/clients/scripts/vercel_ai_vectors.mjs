// Embeddings by Vercel's `ai`.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cosineSimilarity, embed, embedMany } from "ai";
import { apiKey, baseURL, expect, model as name, step } from "./steps.mjs";

const values = ["Rain in Rome.", "It rains.", "A fish."];
const models = {
  "@ai-sdk/openai-compatible": createOpenAICompatible({ name: "orca", baseURL, apiKey }).embeddingModel(name),
  "@ai-sdk/openai": createOpenAI({ baseURL, apiKey }).embedding(name),
};

for (const [title, model] of Object.entries(models)) {
  await step(`${title}: embed and embedMany`, async () => {
    const { embedding, usage } = await embed({ model, value: values[1], maxRetries: 0 });
    const { embeddings } = await embedMany({ model, values, maxRetries: 0 });
    expect(embeddings.length === 3 && usage.tokens > 0, usage);
    expect(cosineSimilarity(embedding, embeddings[1]) > 0.9999, embedding);
  });
}
