// Helpers of OpenAI's JavaScript client: stream(), which accumulates a stream, runTools() and parse().

import OpenAI from "openai";

import { LIMIT_MS, answerJobs, answerResult, catchingErrors } from "./job.mjs";

const chatOf = ({ base_url, key }) =>
  new OpenAI({ apiKey: key, baseURL: base_url, maxRetries: 0, timeout: LIMIT_MS }).chat.completions;
const countsOf = (usage) => [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens];

const request = (job, more = {}) => ({
  model: job.model,
  messages: [{ role: "user", content: job.prompt }],
  temperature: 0,
  max_tokens: job.max_tokens,
  ...more,
});
const question = (job, more) =>
  request(job, { messages: [{ role: "user", content: job.question }], max_tokens: job.call_tokens, ...more });

async function text(job) {
  let pieces = 0;
  const runner = chatOf(job).stream(request(job));
  runner.on("content", () => (pieces += 1));
  const [streamed] = (await runner.finalChatCompletion()).choices;
  const [whole] = (await chatOf(job).create(request(job))).choices;
  return {
    streamed: streamed.message.content,
    pieces,
    whole: whole.message.content,
    finish: [streamed.finish_reason, whole.finish_reason],
  };
}

async function usage(job) {
  const runner = chatOf(job).stream(request(job, { stream_options: { include_usage: true } }));
  const streamed = countsOf(await runner.totalUsage());
  return { streamed: [streamed], whole: countsOf((await chatOf(job).create(request(job))).usage) };
}

// The helper calls the function itself. It sends no further request if a tool was named.
async function tool_stream(job) {
  const calls = [];
  const [{ function: weather }] = job.tools;
  const called = (given) => {
    calls.push([weather.name, given]);
    return job.tool_result;
  };
  const tools = [{ type: "function", function: { ...weather, function: called, parse: JSON.parse } }];
  const tool_choice = { type: "function", function: { name: weather.name } };
  await chatOf(job).runTools(question(job, { tools, tool_choice, stream: true })).done();
  return { calls };
}

async function structured(job) {
  const schema = job.tools[0].function.parameters;
  const response_format = { type: "json_schema", json_schema: { name: "place", strict: true, schema } };
  const whole = await chatOf(job).parse(question(job, { response_format }));
  const streamed = await chatOf(job).stream(question(job, { response_format })).finalChatCompletion();
  return { places: [whole, streamed].map((reply) => JSON.parse(reply.choices[0].message.content)) };
}

async function cancel(job) {
  let pieces = 0;
  const messages = [{ role: "user", content: job.story }];
  const runner = chatOf(job).stream(request(job, { messages, max_tokens: job.story_tokens }));
  for await (const chunk of runner) {
    if (chunk.choices.some((choice) => choice.delta.content)) pieces += 1;
    if (pieces === 2) break; // ends the run
  }
  await runner.done().catch((error) => {
    if (!(error instanceof OpenAI.APIUserAbortError)) throw error;
  });
  return { pieces };
}

async function read(job) {
  const { model, prompt, parameters } = job;
  const answer = await chatOf(job)
    .stream({ model, messages: [{ role: "user", content: prompt }], ...parameters })
    .finalChatCompletion();
  const choices = answer.choices.map(({ message, finish_reason }) => [
    message.content ?? "",
    (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    finish_reason,
  ]);
  return answerResult(choices, answer.usage && countsOf(answer.usage));
}

await answerJobs({ text, usage, tool_stream, structured, cancel, read: catchingErrors(read) });
