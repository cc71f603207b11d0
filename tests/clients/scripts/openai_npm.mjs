// The official package for JavaScript.
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { apiKey, baseURL, expect, model, question, step } from "./steps.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 120000 });
const messages = [{ role: "user", content: question }];

await step("models", async () => {
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  expect(ids.length === 1 && ids[0] === model, ids);
});

await step("chat", async () => {
  const answer = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 12 });
  expect(answer.choices[0].message.content && answer.usage.completion_tokens > 0, answer);
  return answer.choices[0].message.content;
});

await step("chat stream with usage", async () => {
  const stream = await client.chat.completions.create({
    model,
    messages,
    max_tokens: 12,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  expect(chunks.some((chunk) => chunk.choices[0]?.delta.content), chunks);
  expect(chunks.at(-1).usage.completion_tokens > 0, chunks.at(-1));
});

await step("chat stream helper", async () => {
  const stream = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 64 });
  let deltas = "";
  stream.on("content", (delta) => (deltas += delta));
  const final = await stream.finalChatCompletion();
  expect(final.choices[0].message.content === deltas, final, deltas);
});

await step("history of answers", async () => {
  const first = await client.chat.completions.create({ model, messages, max_tokens: 8 });
  const history = [...messages, first.choices[0].message, { role: "user", content: "And of Spain?" }];
  const second = await client.chat.completions.create({ model, messages: history, max_tokens: 8 });
  expect(typeof second.choices[0].message.content === "string", second);
});

await step("completions and their stream", async () => {
  const answer = await client.completions.create({ model, prompt: ["Once", "The sea"], max_tokens: 6 });
  expect(answer.choices.length === 2, answer);
  const stream = await client.completions.create({ model, prompt: "Once", max_tokens: 6, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
  expect(text, text);
});

await step("responses and their stream", async () => {
  const answer = await client.responses.create({ model, input: question, max_output_tokens: 12 });
  expect(answer.output_text, answer);
  const second = await client.responses.create({
    model,
    input: [{ role: "user", content: question }, ...answer.output, { role: "user", content: "Why?" }],
    max_output_tokens: 12,
  });
  expect(second.output_text, second);
  const stream = await client.responses.create({ model, input: question, max_output_tokens: 12, stream: true });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  expect(kinds[0] === "response.created" && kinds.includes("response.output_text.delta"), kinds);
});

await step("responses in the background", async () => {
  let job = await client.responses.create({ model, input: question, background: true, max_output_tokens: 8 });
  while (job.status === "queued" || job.status === "in_progress") {
    await new Promise((done) => setTimeout(done, 200));
    job = await client.responses.retrieve(job.id);
  }
  expect(job.output_text, job);
  await client.responses.delete(job.id);
});

await step("errors as exceptions", async () => {
  const wrong = await client.chat.completions.create({ model, messages, temperature: 9 }).catch((error) => error);
  expect(wrong instanceof BadRequestError && wrong.param === "temperature", wrong);
  const unknown = await client.chat.completions.create({ model: "nothing", messages }).catch((error) => error);
  expect(unknown instanceof NotFoundError, unknown);
});

await step("abort", async () => {
  const controller = new AbortController();
  const stream = await client.chat.completions.create(
    { model, messages, max_tokens: 500, stream: true },
    { signal: controller.signal },
  );
  for await (const _ of stream) controller.abort();
});
