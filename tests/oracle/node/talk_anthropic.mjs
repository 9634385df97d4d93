// Anthropic's JavaScript client: buffered messages, raw streams, and the helper stream().

import Anthropic from "@anthropic-ai/sdk";

import { LIMIT_MS, answerJobs, attempted, emptyAnswer, refused, valueOf } from "./job.mjs";

// The client appends /v1 to the URL itself.
const clientOf = ({ base_url, key }) =>
  new Anthropic({ apiKey: key, baseURL: base_url.replace(/\/v1$/, ""), maxRetries: 0, timeout: LIMIT_MS });
const requestOf = (job, more) => ({
  model: job.model,
  messages: [{ role: "user", content: job.prompt }],
  max_tokens: job.max_tokens,
  temperature: 0,
  ...(job.parameters.thinking && { thinking: job.parameters.thinking }),
  ...more,
});

const readers = {
  whole: async (client, request, shown) => read(await client.messages.create(request), shown),

  // Accumulates the content blocks by hand.
  stream: async (client, request, shown) => {
    const blocks = [];
    const written = [];
    let usage;
    for await (const event of await client.messages.create({ ...request, stream: true })) {
      if (event.type === "message_start") usage = event.message.usage;
      else if (event.type === "content_block_start") {
        blocks[event.index] = { ...event.content_block };
        written[event.index] = "";
      } else if (event.type === "content_block_delta") {
        if (event.delta.type === "input_json_delta") written[event.index] += event.delta.partial_json;
        else add(blocks[event.index], event.delta, shown);
      } else if (event.type === "message_delta") {
        shown.finish = event.delta.stop_reason;
        usage = promptOf(event.usage) ? event.usage : { ...usage, output_tokens: event.usage.output_tokens };
      } else if (event.type === "message_stop") shown.usage = countsOf(usage);
    }
    blocks.forEach((block, index) => {
      if (block.type === "tool_use") block.input = valueOf(written[index]);
    });
    shown.calls = callsIn(blocks).map(({ name, input }) => [name, input]);
    return blocks;
  },

  helper: async (client, request, shown) => {
    const stream = client.messages.stream(request);
    stream.on("text", (piece) => shown.pieces.push(piece));
    return read(await stream.finalMessage(), shown);
  },
};

function add(block, delta, shown) {
  if (delta.type === "text_delta") {
    block.text += delta.text;
    shown.pieces.push(delta.text);
  } else if (delta.type === "thinking_delta") {
    block.thinking += delta.thinking;
    shown.thoughts.push(delta.thinking);
  } else if (delta.type === "signature_delta") block.signature = delta.signature;
}

// Reads a complete message; text that was streamed is already recorded.
function read({ content, stop_reason, usage }, shown) {
  const texts = content.filter(({ type }) => type === "text").map(({ text }) => text);
  if (!shown.pieces.length) shown.pieces = texts;
  shown.thoughts = content.filter(({ type }) => type === "thinking").map(({ thinking }) => thinking);
  shown.calls = callsIn(content).map(({ name, input }) => [name, input]);
  shown.finish = stop_reason;
  shown.usage = countsOf(usage);
  return content;
}

// The API counts cached prompt tokens separately.
const promptOf = ({ input_tokens, cache_read_input_tokens }) => (input_tokens ?? 0) + (cache_read_input_tokens ?? 0);
const countsOf = (usage) => [promptOf(usage), usage.output_tokens, promptOf(usage) + usage.output_tokens];
const callsIn = (blocks) => blocks.filter(({ type }) => type === "tool_use");
const ask = (job, shown, more) => readers[job.mode](clientOf(job), requestOf(job, more), shown);
const answer = attempted((job, shown) => ask(job, shown));

// Forces a tool call, then sends its result with the whole conversation.
async function call(job) {
  const [called, answered] = [emptyAnswer(), emptyAnswer()];
  const tools = job.tools.map(({ function: { name, description, parameters } }) => ({
    name,
    description,
    input_schema: parameters,
  }));
  const question = { role: "user", content: job.question };
  const forced = { messages: [question], tools, tool_choice: { type: "any" }, max_tokens: job.call_tokens };
  const blocks = await ask(job, called, forced);
  const results = callsIn(blocks).map(({ id }) => ({
    type: "tool_result",
    tool_use_id: id,
    content: [{ type: "text", text: job.tool_result }],
  }));
  const messages = [question, { role: "assistant", content: blocks }, { role: "user", content: results }];
  await ask(job, answered, { messages, tools, tool_choice: { type: "none" } });
  return { called, answered };
}

async function count(job) {
  const { model, messages } = requestOf(job);
  return { tokens: (await clientOf(job).messages.countTokens({ model, messages })).input_tokens };
}

async function models(job) {
  const ids = [];
  for await (const { id } of clientOf(job).models.list()) ids.push(id);
  return { models: ids };
}

const refusal = (job, more) =>
  refused(
    () => ask(job, emptyAnswer(), more),
    (error) => error instanceof Anthropic.APIError,
    (error) => error.constructor.name,
    (error) => error.status,
  );
const unknown_model = (job) => refusal(job, { model: job.missing_model });
const bad_request = (job) => refusal(job, { temperature: job.bad_temperature });

async function cancel(job) {
  let pieces = 0;
  const messages = [{ role: "user", content: job.story }];
  const request = requestOf(job, { messages, max_tokens: job.story_tokens });
  const client = clientOf(job);
  const isHelper = job.mode === "helper";
  const stream = isHelper
    ? client.messages.stream(request)
    : await client.messages.create({ ...request, stream: true });
  for await (const { type } of stream) {
    if (type === "content_block_delta") pieces += 1;
    if (pieces === 2) break; // closes the stream
  }
  if (isHelper)
    await stream.done().catch((error) => {
      if (!(error instanceof Anthropic.APIUserAbortError)) throw error;
    });
  return { pieces };
}

await answerJobs({ answer, call, count, models, unknown_model, bad_request, cancel });
