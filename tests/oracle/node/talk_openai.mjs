// OpenAI's JavaScript client without its helpers.

import OpenAI from "openai";

import { LIMIT_MS, answerJobs, answerResult, refused, catchingErrors } from "./job.mjs";

const clientOf = ({ base_url, key }) =>
  new OpenAI({ apiKey: key, baseURL: base_url, maxRetries: 0, timeout: LIMIT_MS });
const countsOf = (usage) => [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens];
const callOf = ({ function: { name, arguments: written } }) => [name, JSON.parse(written)];

const ask = (job, more = {}) =>
  clientOf(job).chat.completions.create({
    model: job.model,
    messages: [{ role: "user", content: job.prompt }],
    temperature: 0,
    max_tokens: job.max_tokens,
    ...more,
  });

async function text(job) {
  const pieces = [];
  const finish = [];
  for await (const chunk of await ask(job, { stream: true })) {
    for (const { delta, finish_reason } of chunk.choices) {
      if (delta.content) pieces.push(delta.content);
      if (finish_reason) finish.push(finish_reason);
    }
  }
  const [whole] = (await ask(job)).choices;
  return {
    streamed: pieces.join(""),
    pieces: pieces.length,
    whole: whole.message.content,
    finish: [...finish, whole.finish_reason],
  };
}

async function usage(job) {
  const streamed = [];
  for await (const chunk of await ask(job, { stream: true, stream_options: { include_usage: true } })) {
    if (chunk.usage) streamed.push(countsOf(chunk.usage));
  }
  return { streamed, whole: countsOf((await ask(job)).usage) };
}

// Forces a tool call, then sends its result.
async function callAndAnswer(job, tool_choice) {
  const { tools } = job;
  const question = { role: "user", content: job.question };
  const reply = await ask(job, { messages: [question], tools, tool_choice, max_tokens: job.call_tokens });
  const { message } = reply.choices[0];
  const results = message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: job.tool_result }));
  const answer = await ask(job, { messages: [question, message, ...results], tools, tool_choice: "none" });
  return { calls: message.tool_calls.map(callOf), answer: answer.choices[0].message.content };
}

const tool_required = (job) => callAndAnswer(job, "required");
const tool_named = (job) =>
  callAndAnswer(job, { type: "function", function: { name: job.tools[0].function.name } });

async function tool_stream(job) {
  const calls = [];
  const messages = [{ role: "user", content: job.question }];
  const more = { messages, tools: job.tools, tool_choice: "required", max_tokens: job.call_tokens, stream: true };
  for await (const chunk of await ask(job, more)) {
    for (const call of chunk.choices.flatMap((choice) => choice.delta.tool_calls ?? [])) {
      calls[call.index] ??= { function: { name: "", arguments: "" } };
      calls[call.index].function.name += call.function.name ?? "";
      calls[call.index].function.arguments += call.function.arguments ?? "";
    }
  }
  return { calls: calls.map(callOf) };
}

const isTheirs = (error) => error instanceof OpenAI.APIError;
const refusal = (job, more) =>
  refused(
    () => ask(job, more),
    isTheirs,
    (error) => error.constructor.name,
    (error) => error.status,
  );
const unknown_model = (job) => refusal(job, { model: job.missing_model });
const unknown_model_stream = (job) => refusal(job, { model: job.missing_model, stream: true });
const bad_request = (job) => refusal(job, { temperature: job.bad_temperature });

async function cancel(job) {
  let pieces = 0;
  const messages = [{ role: "user", content: job.story }];
  const stream = await ask(job, { messages, max_tokens: job.story_tokens, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices.some((choice) => choice.delta.content)) pieces += 1;
    if (pieces === 2) break; // closes the stream
  }
  return { pieces };
}

async function read(job) {
  const { endpoint, model, prompt, parameters } = job;
  const client = clientOf(job);
  const answer = await (endpoint === "chat"
    ? client.chat.completions.create({ model, messages: [{ role: "user", content: prompt }], ...parameters })
    : client.completions.create({ model, prompt, ...parameters }));
  if (parameters.stream) return addedUp(answer);
  const choices = answer.choices.map(({ message, text, finish_reason }) => [
    message ? (message.content ?? "") : text,
    (message?.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    finish_reason,
  ]);
  return answerResult(choices, answer.usage && countsOf(answer.usage));
}

async function addedUp(stream) {
  const choices = [];
  let usage = null;
  for await (const chunk of stream) {
    if (chunk.usage) usage = countsOf(chunk.usage);
    for (const { index, delta, text, finish_reason } of chunk.choices) {
      const mine = (choices[index] ??= ["", [], null]);
      mine[0] += (delta ? delta.content : text) ?? "";
      mine[2] = finish_reason || mine[2];
      for (const call of delta?.tool_calls ?? []) {
        const made = (mine[1][call.index] ??= ["", ""]);
        made[0] += call.function.name ?? "";
        made[1] += call.function.arguments ?? "";
      }
    }
  }
  return answerResult(choices, usage);
}

await answerJobs({
  text,
  usage,
  tool_named,
  tool_required,
  tool_stream,
  unknown_model,
  unknown_model_stream,
  bad_request,
  cancel,
  read: catchingErrors(read),
});
