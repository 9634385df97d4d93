// The AI SDK with its provider for OpenAI-compatible servers; `read` also with the one for OpenAI (mode "openai").

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { answerJobs, answerResult, refused, catchingErrors } from "./job.mjs";

const countsOf = (usage) => [usage.inputTokens, usage.outputTokens, usage.totalTokens];

function request(job, { model = job.model, ...more } = {}) {
  const provider = createOpenAICompatible({
    name: "ours",
    baseURL: job.base_url,
    apiKey: job.key,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  return {
    model: provider.chatModel(model),
    prompt: job.prompt,
    temperature: 0,
    maxOutputTokens: job.max_tokens,
    maxRetries: 0,
    ...more,
  };
}

// Streams report errors only to a listener.
function stream(job, more) {
  const failures = [];
  const answer = streamText(request(job, { ...more, onError: ({ error }) => failures.push(error) }));
  const check = () => {
    if (failures.length) throw failures[0];
  };
  return { answer, check };
}

async function text(job) {
  const pieces = [];
  const { answer, check } = stream(job);
  for await (const piece of answer.textStream) pieces.push(piece);
  check();
  const whole = await generateText(request(job));
  return {
    streamed: pieces.join(""),
    pieces: pieces.length,
    whole: whole.text,
    finish: [await answer.finishReason, whole.finishReason],
  };
}

async function usage(job) {
  const { answer, check } = stream(job);
  await answer.consumeStream();
  check();
  const whole = await generateText(request(job));
  return { streamed: [countsOf(await answer.usage)], whole: countsOf(whole.usage) };
}

// `calls` records the arguments that the SDK passes to each tool.
function toolsOf(job, calls) {
  const entries = job.tools.map(({ function: { name, description, parameters } }) => {
    const execute = (given) => {
      calls.push([name, given]);
      return job.tool_result;
    };
    return [name, tool({ description, inputSchema: jsonSchema(parameters), execute })];
  });
  return Object.fromEntries(entries);
}

// The SDK runs the loop itself: the first step must call a tool, the second must answer.
async function callAndAnswer(job, toolChoice) {
  const calls = [];
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? toolChoice : "none" });
  const tools = toolsOf(job, calls);
  const more = { prompt: job.question, maxOutputTokens: job.call_tokens, stopWhen: stepCountIs(2) };
  const answer = await generateText(request(job, { ...more, tools, prepareStep }));
  return { calls, answer: answer.text };
}

const tool_required = (job) => callAndAnswer(job, "required");
const tool_named = (job) => callAndAnswer(job, { type: "tool", toolName: job.tools[0].function.name });

async function tool_stream(job) {
  const calls = [];
  const more = { prompt: job.question, maxOutputTokens: job.call_tokens, toolChoice: "required" };
  const { answer, check } = stream(job, { ...more, tools: toolsOf(job, calls) });
  await answer.consumeStream();
  check();
  return { calls };
}

async function structured(job) {
  const output = Output.object({ schema: jsonSchema(job.tools[0].function.parameters) });
  const more = { prompt: job.question, maxOutputTokens: job.call_tokens, output };
  const whole = await generateText(request(job, more));
  const { answer, check } = stream(job, more);
  await answer.consumeStream();
  check();
  return { places: [whole.output, await answer.output] };
}

const refusal = (job, more) =>
  refused(
    () => generateText(request(job, more)),
    APICallError.isInstance,
    (error) => error.name,
    (error) => error.statusCode,
  );
const unknown_model = (job) => refusal(job, { model: job.missing_model });
const bad_request = (job) => refusal(job, { temperature: job.bad_temperature });

async function cancel(job) {
  let pieces = 0;
  const leaving = new AbortController();
  const more = { prompt: job.story, maxOutputTokens: job.story_tokens, abortSignal: leaving.signal };
  const { answer } = stream(job, more);
  for await (const _ of answer.textStream) {
    pieces += 1;
    if (pieces === 2) break;
  }
  leaving.abort();
  return { pieces };
}

async function read(job) {
  const { base_url, key, endpoint, model, prompt, parameters } = job;
  const { stream, stream_options, tools = [], tool_choice, ...others } = parameters;
  const includeUsage = Boolean(stream_options?.include_usage);
  const isOpenAI = job.mode === "openai"; // OpenAI's own provider, which always asks for usage
  const provider = isOpenAI
    ? createOpenAI({ baseURL: base_url, apiKey: key })
    : createOpenAICompatible({ name: "ours", baseURL: base_url, apiKey: key, includeUsage });
  const chatModel = (name) => (isOpenAI ? provider.chat(name) : provider.chatModel(name));
  const completionModel = (name) => (isOpenAI ? provider.completion(name) : provider.completionModel(name));
  const offered = tools.map(({ function: { name, parameters } }) => [
    name,
    tool({ inputSchema: jsonSchema(parameters) }),
  ]);
  const named = tool_choice?.function && { type: "tool", toolName: tool_choice.function.name };
  const request = {
    model: endpoint === "chat" ? chatModel(model) : completionModel(model),
    prompt,
    tools: Object.fromEntries(offered),
    toolChoice: named ?? tool_choice,
    providerOptions: { ours: others }, // forwarded unchanged
    maxRetries: 0,
  };
  if (stream) return addedUp(streamText({ ...request, onError: () => {} })); // the stream has the error as a part, too
  const answer = await generateText(request);
  const calls = answer.toolCalls.map((call) => [call.toolName, call.input]);
  return answerResult([[answer.text, calls, answer.rawFinishReason]], countsOf(answer.usage));
}

async function addedUp(answer) {
  const mine = ["", [], null];
  let usage = null;
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") mine[0] += part.text;
    if (part.type === "tool-call") mine[1].push([part.toolName, part.input]);
    if (part.type === "error") throw part.error;
    if (part.type === "finish-step") {
      mine[2] = part.rawFinishReason;
      usage = countsOf(part.usage);
    }
  }
  return answerResult([mine], usage);
}

await answerJobs({
  text,
  usage,
  tool_named,
  tool_required,
  tool_stream,
  structured,
  unknown_model,
  bad_request,
  cancel,
  read: catchingErrors(read),
});
