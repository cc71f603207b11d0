// Vercel's `ai` with its provider for servers that speak OpenAI's API.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";
import { apiKey, baseURL, expect, model as name, question, step } from "./steps.mjs";

const provider = createOpenAICompatible({ name: "orca", baseURL, apiKey, includeUsage: true });
const model = provider(name);

await step("generateText", async () => {
  const { text, usage, finishReason } = await generateText({ model, prompt: question, maxOutputTokens: 12 });
  expect(text && usage.outputTokens > 0 && ["stop", "length"].includes(finishReason), text, usage, finishReason);
  return text;
});

await step("generateText with system, temperature, seed, stop", async () => {
  const { text } = await generateText({
    model,
    system: "Be brief.",
    prompt: question,
    maxOutputTokens: 12,
    temperature: 0.5,
    topP: 0.9,
    seed: 3,
    stopSequences: ["\n\n"],
    presencePenalty: 0.1,
    frequencyPenalty: 0.1,
  });
  expect(text, text);
});

await step("streamText with usage", async () => {
  const result = streamText({ model, prompt: question, maxOutputTokens: 12, onError: () => {} });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  const usage = await result.usage;
  expect(text && usage.outputTokens > 0, text, usage);
});

await step("history", async () => {
  const messages = [{ role: "user", content: question }];
  const first = await generateText({ model, messages, maxOutputTokens: 8 });
  messages.push(...first.response.messages, { role: "user", content: "And of Spain?" });
  const second = await generateText({ model, messages, maxOutputTokens: 8 });
  expect(typeof second.text === "string", second);
});

await step("completion model", async () => {
  const { text } = await generateText({
    model: provider.completionModel(name),
    prompt: "Once upon a time",
    maxOutputTokens: 8,
  });
  expect(text, text);
});

await step("errors as exceptions", async () => {
  const wrong = { model: provider("nothing"), prompt: question, maxRetries: 0 };
  const error = await generateText(wrong).catch((caught) => caught);
  expect(APICallError.isInstance(error) && error.statusCode === 404, error);
});
