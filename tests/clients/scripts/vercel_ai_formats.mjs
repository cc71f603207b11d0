// Forced calls in a family's own format, and its reasoning, by Vercel's `ai`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { ask as prompt, check, length, Weather } from "./examples.mjs";
import { apiKey, baseURL, budget, expect, model as name, reasons, step } from "./steps.mjs";

const model = createOpenAICompatible({ name: "orca", baseURL, apiKey })(name);
const weather = tool({
  description: "the weather of a city",
  inputSchema: Weather,
  execute: async ({ city, days }) => `${days} days of rain in ${city}`,
});
const forced = {
  model,
  prompt,
  maxOutputTokens: length,
  temperature: 0,
  maxRetries: 0,
  tools: { weather },
  toolChoice: "required",
  providerOptions: { orca: { parallel_tool_calls: false, ...budget } },
};

await step("generateText: required, and with a name", async () => {
  for (const toolChoice of ["required", { type: "tool", toolName: "weather" }]) {
    const { toolCalls, finishReason, reasoningText } = await generateText({ ...forced, toolChoice });
    expect(toolCalls.length === 1 && finishReason === "tool-calls", toolCalls, finishReason);
    check(Weather, toolCalls[0].input);
    expect(reasons !== "must" || reasoningText, reasoningText);
  }
});

await step("streamText", async () => {
  const stream = streamText({ ...forced, onError: () => {} });
  let deltas = "";
  let reasoning = "";
  for await (const part of stream.fullStream) {
    if (part.type === "tool-input-delta") deltas += part.delta;
    if (part.type === "reasoning-delta") reasoning += part.text;
  }
  const [call] = await stream.toolCalls;
  check(Weather, call.input);
  expect(JSON.stringify(JSON.parse(deltas)) === JSON.stringify(call.input), deltas, call);
  expect(reasons !== "must" || reasoning, reasoning);
});

await step("two steps, the result sent back", async () => {
  const { steps } = await generateText({ ...forced, stopWhen: stepCountIs(2) });
  expect(steps.length === 2 && steps[0].toolResults.length === 1, steps);
  check(Weather, steps[1].toolCalls[0].input);
});
