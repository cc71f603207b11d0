// Structured output and tools by Vercel's `ai`.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { ask as prompt, check, length, Report, Weather } from "./examples.mjs";
import { apiKey, baseURL, expect, model as name, step } from "./steps.mjs";

const provider = createOpenAICompatible({ name: "orca", baseURL, apiKey, supportsStructuredOutputs: true });
const model = provider(name);
const settings = { model, prompt, maxOutputTokens: length, temperature: 0, maxRetries: 0 };
const weather = tool({
  description: "the weather of a city",
  inputSchema: Weather,
  execute: async ({ city, days }) => `${days} days of rain in ${city}`,
});
const single = { orca: { parallel_tool_calls: false } };
const forced = { ...settings, tools: { weather }, toolChoice: "required", providerOptions: single };

await step("generateObject", async () => {
  const { object, finishReason } = await generateObject({ ...settings, schema: Report });
  check(Report, object);
  expect(finishReason === "stop", finishReason);
  return JSON.stringify(object);
});

await step("generateObject of an enum, without a schema", async () => {
  const { object } = await generateObject({ ...settings, output: "enum", enum: ["clear", "clouds"] });
  expect(["clear", "clouds"].includes(object), object);
});

await step("streamObject", async () => {
  const { partialObjectStream, object } = streamObject({ ...settings, schema: Report, onError: () => {} });
  for await (const _ of partialObjectStream);
  check(Report, await object);
});

await step("generateText and streamText with output", async () => {
  const { output } = await generateText({ ...settings, output: Output.object({ schema: Report }) });
  check(Report, output);
  const stream = streamText({ ...settings, output: Output.object({ schema: Report }), onError: () => {} });
  for await (const _ of stream.partialOutputStream);
  check(Report, await stream.output);
});

await step("tools: required, with a name, none, auto", async () => {
  for (const toolChoice of ["required", { type: "tool", toolName: "weather" }]) {
    const { toolCalls, toolResults, finishReason } = await generateText({ ...forced, toolChoice });
    expect(toolCalls.length === 1 && finishReason === "tool-calls", toolCalls, finishReason);
    check(Weather, toolCalls[0].input);
    expect(toolResults[0].output.includes("days of rain"), toolResults);
  }
  const none = await generateText({ ...forced, toolChoice: "none", maxOutputTokens: 12 });
  expect(none.text && !none.toolCalls.length, none);
  await generateText({ ...forced, toolChoice: "auto", maxOutputTokens: 30 });
});

await step("streamText with tools", async () => {
  const stream = streamText({ ...forced, onError: () => {} });
  let deltas = "";
  let ended = "";
  for await (const part of stream.fullStream) {
    if (part.type === "tool-input-delta") deltas += part.delta;
    if (part.type === "finish") ended = part.finishReason;
  }
  const [call] = await stream.toolCalls;
  check(Weather, call.input);
  expect(JSON.stringify(JSON.parse(deltas)) === JSON.stringify(call.input), deltas, call);
  expect(ended === "tool-calls", ended);
});

await step("a tool loop of two steps", async () => {
  const { steps, text } = await generateText({
    ...forced,
    maxOutputTokens: 60,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
  });
  expect(steps.length === 2 && steps[0].toolResults.length === 1 && text, steps);
  return text;
});

await step("a schema beside tools", async () => {
  const { output } = await generateText({
    ...forced,
    toolChoice: "none",
    output: Output.object({ schema: z.object({ good: z.boolean() }) }),
  });
  expect(typeof output.good === "boolean", output);
});

const others = {
  "@ai-sdk/openai, chat": createOpenAI({ baseURL, apiKey }).chat(name),
  "@ai-sdk/openai, responses": createOpenAI({ baseURL, apiKey }).responses(name),
  "@ai-sdk/anthropic": createAnthropic({ baseURL, apiKey })(name),
};

for (const [title, other] of Object.entries(others)) {
  const providerOptions = { openai: { parallelToolCalls: false }, anthropic: { disableParallelToolUse: true } };

  await step(`${title}: generateObject`, async () => {
    const { object } = await generateObject({ ...settings, model: other, providerOptions, schema: Report });
    check(Report, object);
  });

  await step(`${title}: a tool loop of two steps, streamed`, async () => {
    const stream = streamText({
      ...forced,
      model: other,
      providerOptions,
      maxOutputTokens: 60,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
      onError: () => {},
    });
    for await (const _ of stream.fullStream);
    const steps = await stream.steps;
    check(Weather, steps[0].toolCalls[0].input);
    expect(steps.length === 2 && steps[0].toolResults.length === 1 && steps[1].text, steps);
  });
}
