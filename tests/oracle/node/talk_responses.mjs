// OpenAI's JavaScript client on the Responses API: buffered responses, raw streams, the helper stream(), WebSockets.

import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

import { LIMIT_MS, answerJobs, attempted, emptyAnswer, refused, valueOf } from "./job.mjs";

const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);

const clientOf = ({ base_url, key }) =>
  new OpenAI({ apiKey: key, baseURL: base_url, maxRetries: 0, timeout: LIMIT_MS });
const requestOf = (job, more) => ({
  model: job.model,
  input: job.prompt,
  max_output_tokens: job.max_tokens,
  temperature: 0,
  ...more,
});

const readers = {
  whole: async (client, request, shown) => read(await client.responses.create(request), shown),

  stream: async (client, request, shown) =>
    accumulate(await client.responses.create({ ...request, stream: true }), shown),

  socket: (client, request, shown) => accumulate(socketEvents(client, request), shown),

  helper: async (client, request, shown) => {
    const stream = client.responses.stream(request);
    stream.on("response.output_text.delta", ({ delta }) => shown.pieces.push(delta));
    return read(await stream.finalResponse(), shown);
  },
};

// Accumulates text and calls by hand; status and usage come from the last event.
async function accumulate(events, shown) {
  const calls = [];
  let final;
  for await (const event of events) {
    const { type, delta, item, output_index } = event;
    if (type === "response.output_text.delta") shown.pieces.push(delta);
    else if (type === "response.reasoning_text.delta") shown.thoughts.push(delta);
    else if (type === "response.output_item.added" && item.type === "function_call")
      calls[output_index] = [item.name, item.arguments];
    else if (type === "response.function_call_arguments.delta") calls[output_index][1] += delta;
    else if (TERMINAL.has(type)) final = event.response;
  }
  shown.calls = calls.filter(Boolean).map(([name, written]) => [name, valueOf(written)]);
  readEnd(final, shown);
  return final.output;
}

// The events of one response; an error event becomes the exception of its status.
async function* socketEvents(client, request) {
  const socket = new ResponsesWS(client);
  try {
    socket.send({ type: "response.create", ...request });
    for await (const { type, message, error } of socket) {
      if (type === "error") {
        const { status, error: body } = error.error ?? {};
        throw status ? OpenAI.APIError.generate(status, { error: body }, undefined, new Headers()) : error;
      }
      if (type === "message") yield message;
      if (TERMINAL.has(message?.type)) return;
    }
  } finally {
    socket.close();
  }
}

// Reads a complete response; text that was streamed is already recorded.
function read(response, shown) {
  const { output, output_text } = response;
  if (!shown.pieces.length && output_text) shown.pieces.push(output_text);
  const reasoning = output.filter(({ type }) => type === "reasoning");
  shown.thoughts = reasoning.flatMap(({ content }) => (content ?? []).map(({ text }) => text));
  shown.calls = callsIn(output).map(({ name, arguments: written }) => [name, valueOf(written)]);
  readEnd(response, shown);
  return output;
}

function readEnd({ status, usage, error }, shown) {
  shown.finish = status;
  if (usage) shown.usage = [usage.input_tokens, usage.output_tokens, usage.total_tokens];
  if (error) shown.error = `${error.code}: ${error.message}`;
}

const callsIn = (output) => output.filter(({ type }) => type === "function_call");
const ask = (job, shown, more) => readers[job.mode](clientOf(job), requestOf(job, more), shown);
const answer = attempted((job, shown) => ask(job, shown));

// Forces a tool call, then sends its result with the whole conversation.
async function call(job) {
  const [called, answered] = [emptyAnswer(), emptyAnswer()];
  const tools = job.tools.map(({ function: one }) => ({ type: "function", strict: true, ...one }));
  const input = [{ role: "user", content: job.question }];
  const forced = { input, tools, tool_choice: "required", max_output_tokens: job.call_tokens };
  const output = await ask(job, called, forced);
  const results = callsIn(output).map(({ call_id }) => ({
    type: "function_call_output",
    call_id,
    output: job.tool_result,
  }));
  await ask(job, answered, { input: [...input, ...output, ...results], tools, tool_choice: "none" });
  return { called, answered };
}

// A stored response can be retrieved until it is deleted.
async function stored(job) {
  const { responses } = clientOf(job);
  const { id, output_text } = await responses.create(requestOf(job));
  const again = (await responses.retrieve(id)).output_text === output_text;
  const input = [];
  for await (const item of responses.inputItems.list(id)) input.push(item.type);
  await responses.delete(id);
  return { again, input, ...(await refusal(() => responses.retrieve(id))) };
}

// The stream of a background response, which is lost after its second piece of text and resumed.
async function resumed(job) {
  const { responses } = clientOf(job);
  const pieces = [];
  let [id, last, final] = ["", -1, null];
  const keep = (event) => {
    last = event.sequence_number;
    if (event.type === "response.created") id = event.response.id;
    else if (event.type === "response.output_text.delta") pieces.push(event.delta);
    else if (TERMINAL.has(event.type)) final = event.response;
  };
  for await (const event of await responses.create({ ...requestOf(job), background: true, stream: true })) {
    keep(event);
    if (pieces.length === 2) break; // closes the stream
  }
  let is_contiguous = true;
  for await (const event of await responses.retrieve(id, { stream: true, starting_after: last })) {
    is_contiguous &&= event.sequence_number === last + 1;
    keep(event);
  }
  const whole = await responses.retrieve(id);
  const is_whole = pieces.join("") === whole.output_text && final.id === whole.id;
  return { is_contiguous, is_whole, background: whole.background, pieces: pieces.length };
}

const refusal = (asking) =>
  refused(
    asking,
    (error) => error instanceof OpenAI.APIError,
    (error) => error.constructor.name,
    (error) => error.status,
  );
const unknown_model = (job) => refusal(() => ask(job, emptyAnswer(), { model: job.missing_model }));
const bad_request = (job) => refusal(() => ask(job, emptyAnswer(), { temperature: job.bad_temperature }));

async function cancel(job) {
  let pieces = 0;
  const request = requestOf(job, { input: job.story, max_output_tokens: job.story_tokens });
  const client = clientOf(job);
  const isHelper = job.mode === "helper";
  const open = {
    stream: () => client.responses.create({ ...request, stream: true }),
    helper: () => client.responses.stream(request),
    socket: () => socketEvents(client, request),
  };
  const stream = await open[job.mode]();
  for await (const { type } of stream) {
    if (type === "response.output_text.delta") pieces += 1;
    if (pieces === 2) break; // closes the stream
  }
  if (isHelper)
    await stream.done().catch((error) => {
      if (!(error instanceof OpenAI.APIUserAbortError)) throw error;
    });
  return { pieces };
}

await answerJobs({ answer, call, stored, resumed, unknown_model, bad_request, cancel });
