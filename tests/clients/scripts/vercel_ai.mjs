// Vercel's `ai` with its provider for servers that speak OpenAI's API.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, baseURL, expect, model as name, question, step, STRUCTURED, TOOLS } from "./steps.mjs";

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

await step("generateObject", async () => {
  const structured = createOpenAICompatible({ name: "orca", baseURL, apiKey, supportsStructuredOutputs: true });
  const schema = z.object({ city: z.string() });
  const { object } = await generateObject({ model: structured(name), schema, prompt: question, maxRetries: 0 });
  expect(typeof object.city === "string", object);
}, STRUCTURED);

await step("tools", async () => {
  const weather = tool({
    description: "the weather of a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async () => "21 degrees",
  });
  const { toolCalls } = await generateText({
    model,
    prompt: question,
    tools: { weather },
    toolChoice: "required",
    maxOutputTokens: 60,
    maxRetries: 0,
  });
  expect(toolCalls.length, toolCalls);
}, TOOLS);
