// The AI SDK with its providers for OpenAI (the Responses API) and Anthropic (the Messages API).

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { answerJobs, attempted, emptyAnswer, refused } from "./job.mjs";

const modelOf = {
  responses: ({ base_url, key }, name) => createOpenAI({ baseURL: base_url, apiKey: key }).responses(name),
  messages: ({ base_url, key }, name) => createAnthropic({ baseURL: base_url, apiKey: key })(name),
};

const requestOf = (job, { model = job.model, ...more } = {}) => ({
  model: modelOf[job.endpoint](job, model),
  prompt: job.prompt,
  temperature: 0,
  maxOutputTokens: job.max_tokens,
  maxRetries: 0,
  ...(job.parameters.thinking && { providerOptions: { anthropic: { thinking: job.parameters.thinking } } }),
  ...more,
});
const countsOf = (usage) => [usage.inputTokens, usage.outputTokens, usage.totalTokens];

const readers = {
  whole: async (request, shown) => {
    const { text, reasoningText, finishReason, totalUsage } = await generateText(request);
    shown.pieces = [text];
    shown.thoughts = reasoningText ? [reasoningText] : [];
    shown.finish = finishReason;
    shown.usage = countsOf(totalUsage);
  },

  stream: async (request, shown) => {
    const { fullStream } = streamText({ ...request, onError: () => {} }); // the stream has the error as a part, too
    for await (const part of fullStream) {
      if (part.type === "text-delta") shown.pieces.push(part.text);
      else if (part.type === "reasoning-delta") shown.thoughts.push(part.text);
      else if (part.type === "error") throw part.error;
      else if (part.type === "finish") {
        shown.finish = part.finishReason;
        shown.usage = countsOf(part.totalUsage);
      }
    }
  },
};

const ask = (job, shown, more) => readers[job.mode](requestOf(job, more), shown);
const answer = attempted((job, shown) => ask(job, shown));

// The SDK calls the functions and sends their results itself.
async function call(job) {
  const [called, answered] = [emptyAnswer(), emptyAnswer()];
  const entries = job.tools.map(({ function: { name, description, parameters } }) => {
    const execute = (given) => {
      called.calls.push([name, given]);
      return job.tool_result;
    };
    return [name, tool({ description, inputSchema: jsonSchema(parameters), execute })];
  });
  const steps = {
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  };
  const more = { prompt: job.question, maxOutputTokens: job.call_tokens, tools: Object.fromEntries(entries), ...steps };
  await ask(job, answered, more);
  return { called, answered };
}

const refusal = (job, more) =>
  refused(
    () => ask(job, emptyAnswer(), more),
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
  for await (const _ of streamText({ ...requestOf(job, more), onError: () => {} }).textStream) {
    pieces += 1;
    if (pieces === 2) break;
  }
  leaving.abort();
  return { pieces };
}

await answerJobs({ answer, call, unknown_model, bad_request, cancel });
