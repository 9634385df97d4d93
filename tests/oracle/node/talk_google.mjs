// Google's JavaScript client: whole replies, streams, and the chat that keeps the history of a stream.

import { ApiError, GoogleGenAI } from "@google/genai";

import { LIMIT_MS, answerJobs, attempted, emptyAnswer, refused } from "./job.mjs";

// The client appends /v1 to the URL itself.
const clientOf = ({ base_url, key }) =>
  new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: base_url.replace(/\/v1$/, ""), timeout: LIMIT_MS } });
const user = (text) => ({ role: "user", parts: [{ text }] });
const requestOf = (job, { model, contents, ...config } = {}) => ({
  model: model ?? job.model,
  contents: contents ?? [user(job.prompt)],
  config: {
    temperature: 0,
    maxOutputTokens: job.max_tokens,
    ...(job.parameters.thinking && { thinkingConfig: { includeThoughts: true } }),
    ...config,
  },
});

const readers = {
  whole: async (client, request, shown) => read([await client.models.generateContent(request)], shown),

  stream: async (client, request, shown) => read(await client.models.generateContentStream(request), shown),

  // The chat records the history itself, unless an element of the stream is invalid.
  helper: async (client, { model, contents, config }, shown) => {
    const history = contents.slice(0, -1);
    const chat = client.chats.create({ model, config, history });
    const parts = await read(await chat.sendMessageStream({ message: contents.at(-1).parts }), shown);
    const recorded = chat.getHistory(true).slice(history.length + 1);
    if (recorded.flatMap((content) => content.parts).length !== parts.length) throw new TypeError("history is lost");
    return parts;
  },
};

async function read(elements, shown) {
  const parts = [];
  for await (const { candidates, usageMetadata } of elements) {
    const [{ content, finishReason }] = candidates;
    parts.push(...content.parts);
    for (const { text, thought, functionCall } of content.parts) {
      if (functionCall) shown.calls.push([functionCall.name, functionCall.args]);
      else if (text) (thought ? shown.thoughts : shown.pieces).push(text);
    }
    if (finishReason) shown.finish = finishReason;
    if (usageMetadata) shown.usage = countsOf(usageMetadata);
  }
  return parts;
}

const countsOf = ({ promptTokenCount, candidatesTokenCount, thoughtsTokenCount, totalTokenCount }) => [
  promptTokenCount,
  candidatesTokenCount + (thoughtsTokenCount ?? 0),
  totalTokenCount,
];
const ask = (job, shown, more) => readers[job.mode](clientOf(job), requestOf(job, more), shown);
const answer = attempted((job, shown) => ask(job, shown));

// Forces a tool call, then sends its result with the whole conversation.
async function call(job) {
  const [called, answered] = [emptyAnswer(), emptyAnswer()];
  const functionDeclarations = job.tools.map(({ function: { name, description, parameters } }) => ({
    name,
    description,
    parametersJsonSchema: parameters,
  }));
  const tools = [{ functionDeclarations }];
  const mode = (name) => ({ functionCallingConfig: { mode: name } });
  const question = user(job.question);
  const forced = { contents: [question], tools, toolConfig: mode("ANY"), maxOutputTokens: job.call_tokens };
  const parts = await ask(job, called, forced);
  const results = parts
    .filter(({ functionCall }) => functionCall)
    .map(({ functionCall: { id, name } }) => ({ functionResponse: { id, name, response: { result: job.tool_result } } }));
  const contents = [question, { role: "model", parts }, { role: "user", parts: results }];
  await ask(job, answered, { contents, tools, toolConfig: mode("NONE") });
  return { called, answered };
}

async function count(job) {
  return { tokens: (await clientOf(job).models.countTokens({ model: job.model, contents: job.prompt })).totalTokens };
}

async function models(job) {
  const names = [];
  for await (const { name } of await clientOf(job).models.list()) names.push(name.replace(/^models\//, ""));
  return { models: names };
}

const refusal = (job, more) =>
  refused(
    () => ask(job, emptyAnswer(), more),
    (error) => error instanceof ApiError,
    (error) => error.name,
    (error) => error.status,
  );
const unknown_model = (job) => refusal(job, { model: job.missing_model });
const bad_request = (job) => refusal(job, { temperature: job.bad_temperature });

async function cancel(job) {
  let pieces = 0;
  const abort = new AbortController();
  const more = { contents: [user(job.story)], maxOutputTokens: job.story_tokens, abortSignal: abort.signal };
  const { model, contents, config } = requestOf(job, more);
  const client = clientOf(job);
  const stream =
    job.mode === "helper"
      ? await client.chats.create({ model, config }).sendMessageStream({ message: job.story })
      : await client.models.generateContentStream({ model, contents, config });
  for await (const { text } of stream) {
    if (text) pieces += 1;
    if (pieces === 2) break;
  }
  abort.abort();
  return { pieces };
}

await answerJobs({ answer, call, count, models, unknown_model, bad_request, cancel });
