// Structured output and tools by the official package for JavaScript, with types of zod.
import OpenAI, { BadRequestError } from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { ask, check, length, Report, Weather } from "./examples.mjs";
import { apiKey, baseURL, expect, model, step } from "./steps.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 120000 });
const messages = [{ role: "user", content: ask }];
const settings = { model, messages, max_tokens: length, temperature: 0 };
const tool = zodFunction({ name: "get_weather", description: "the weather of a city", parameters: Weather });
const forced = { ...settings, tools: [tool], tool_choice: "required", parallel_tool_calls: false };

await step("chat.completions.parse", async () => {
  const answer = await client.chat.completions.parse({
    ...settings,
    response_format: zodResponseFormat(Report, "report"),
  });
  check(Report, answer.choices[0].message.parsed);
  return answer.choices[0].message.content;
});

await step("chat.completions.stream with a type", async () => {
  const stream = client.chat.completions.stream({ ...settings, response_format: zodResponseFormat(Report, "report") });
  let deltas = "";
  stream.on("content", (delta) => (deltas += delta));
  const final = await stream.finalChatCompletion();
  check(Report, final.choices[0].message.parsed);
  expect(deltas === final.choices[0].message.content, deltas, final);
});

await step("json_object", async () => {
  const answer = await client.chat.completions.create({ ...settings, response_format: { type: "json_object" } });
  expect(answer.choices[0].message.content.startsWith("{"), answer);
});

await step("responses.parse", async () => {
  const answer = await client.responses.parse({
    model,
    input: ask,
    max_output_tokens: length,
    temperature: 0,
    text: { format: zodTextFormat(Report, "report") },
  });
  check(Report, answer.output_parsed);
});

await step("tool_choice required, with a name, none", async () => {
  for (const choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
    const answer = await client.chat.completions.parse({ ...forced, tool_choice: choice });
    const [call] = answer.choices[0].message.tool_calls;
    check(Weather, call.function.parsed_arguments);
    expect(answer.choices[0].finish_reason === "tool_calls", answer);
  }
  const none = await client.chat.completions.create({ ...forced, tool_choice: "none", max_tokens: 12 });
  expect(none.choices[0].message.content && !none.choices[0].message.tool_calls, none);
});

await step("chat.completions.stream with a type as tool", async () => {
  const stream = client.chat.completions.stream(forced);
  let deltas = "";
  stream.on("tool_calls.function.arguments.delta", (event) => (deltas += event.arguments_delta));
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  check(Weather, call.function.parsed_arguments);
  expect(deltas === call.function.arguments, deltas, call);
});

await step("runTools", async () => {
  const called = [];
  const runner = client.chat.completions.runTools(
    {
      ...settings,
      max_tokens: 40,
      tool_choice: { type: "function", function: { name: "get_weather" } }, // the runner ends after a named call
      tools: [
        zodFunction({
          name: "get_weather",
          parameters: Weather,
          function: (given) => {
            called.push(given);
            return "sunny";
          },
        }),
      ],
    },
    { maxChatCompletions: 1 },
  );
  await runner.done();
  expect(called.length > 0, called);
  called.forEach((given) => check(Weather, given));
});

await step("a tool loop", async () => {
  const first = await client.chat.completions.create(forced);
  const { message } = first.choices[0];
  const history = [...messages, message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" }];
  const second = await client.chat.completions.create({
    ...forced,
    messages: history,
    tool_choice: "none",
    max_tokens: 16,
  });
  expect(second.choices[0].message.content, second);
  return second.choices[0].message.content;
});

await step("responses: tools, their stream, and the loop", async () => {
  const tools = [zodResponsesFunction({ name: "get_weather", parameters: Weather })];
  const body = { model, input: ask, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 0 };
  const first = await client.responses.parse({ ...body, max_output_tokens: length });
  const [call] = first.output;
  check(Weather, call.parsed_arguments);
  const stream = await client.responses.create({ ...body, max_output_tokens: length, stream: true });
  let deltas = "";
  for await (const event of stream) if (event.type === "response.function_call_arguments.delta") deltas += event.delta;
  expect(deltas === call.arguments, deltas, call);
  const second = await client.responses.create({
    ...body,
    tool_choice: "none",
    max_output_tokens: 16,
    previous_response_id: first.id,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }],
  });
  expect(second.output_text, second);
});

await step("what cannot run is a BadRequestError", async () => {
  const wrong = { type: "json_schema", json_schema: { name: "wrong", schema: { type: "nothing" } } };
  const error = await client.chat.completions.create({ ...settings, response_format: wrong }).catch((caught) => caught);
  expect(error instanceof BadRequestError, error);
});
