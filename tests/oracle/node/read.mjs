// JavaScript clients as independent readers of a stream.
//
// Reads JSON lines {"base_url", "endpoint", "client", "tools"} and answers each with one JSON line: the reply in the
// form of tests/oracle/reply.py, or {"crash": reason} if the client raised anything but an error that the server sent.

import { createInterface } from "node:readline";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const LIMIT_MS = 20_000;
const MESSAGES = [{ role: "user", content: "Hello" }];

const newReply = () => ({ choices: {}, usage: null, error: null });
const newChoice = () => ({ role: "", text: "", reasoning: "", refusal: "", tools: [], finish: null });
const usageOf = (usage) => (usage ? [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens] : null);
const openaiAt = (base_url) => new OpenAI({ apiKey: "none", baseURL: base_url, maxRetries: 0, timeout: LIMIT_MS });

// An error event has no HTTP status: the reply started with 200.
function serverErrorOf(error) {
  if (error instanceof OpenAI.APIError && error.status === undefined && error.error) return error.message;
  throw error;
}

function addDelta(mine, delta) {
  // Every string is concatenated, role and ids included, so that repeated ones are visible.
  mine.role += delta.role ?? "";
  mine.text += delta.content ?? "";
  mine.reasoning += delta.reasoning_content ?? "";
  mine.refusal += delta.refusal ?? "";
  for (const call of delta.tool_calls ?? []) {
    mine.tools[call.index] ??= ["", "", ""];
    const pieces = [call.id, call.function?.name, call.function?.arguments];
    pieces.forEach((piece, at) => (mine.tools[call.index][at] += piece ?? ""));
  }
}

async function openai({ base_url, endpoint }) {
  const reply = newReply();
  const client = openaiAt(base_url);
  const stream =
    endpoint === "chat"
      ? await client.chat.completions.create({ model: "m", messages: MESSAGES, stream: true })
      : await client.completions.create({ model: "m", prompt: "Hello", stream: true });
  try {
    for await (const chunk of stream) {
      for (const part of chunk.choices) {
        const mine = (reply.choices[part.index] ??= newChoice());
        if (endpoint === "chat") addDelta(mine, part.delta);
        else mine.text += part.text;
        mine.finish = part.finish_reason ?? mine.finish;
      }
      reply.usage = usageOf(chunk.usage) ?? reply.usage;
    }
  } catch (error) {
    reply.error = serverErrorOf(error);
  }
  return reply;
}

async function openaiHelper({ base_url }) {
  const reply = newReply();
  const runner = openaiAt(base_url).chat.completions.stream({ model: "m", messages: MESSAGES });
  let answer;
  try {
    answer = await runner.finalChatCompletion();
  } catch (error) {
    reply.error = serverErrorOf(error);
    answer = runner.currentChatCompletionSnapshot;
  }
  for (const { index, message, finish_reason } of answer?.choices ?? []) {
    reply.choices[index] = {
      ...newChoice(),
      role: message.role ?? "",
      text: message.content ?? "",
      refusal: message.refusal ?? "",
      tools: (message.tool_calls ?? []).map((call) => [call.id, call.function.name, call.function.arguments]),
      finish: finish_reason ?? null,
    };
  }
  reply.usage = usageOf(answer?.usage);
  return reply;
}

async function aiSdk({ base_url, endpoint, tools = [] }) {
  const provider = createOpenAICompatible({ name: "judge", baseURL: base_url, includeUsage: true });
  const anything = tool({ inputSchema: jsonSchema({ type: "object" }) });
  const stream = streamText({
    model: endpoint === "chat" ? provider.chatModel("m") : provider.completionModel("m"),
    prompt: "Hello",
    tools: Object.fromEntries(tools.map((name) => [name, anything])),
    maxRetries: 0,
    onError: () => {}, // the stream has the error as a part, too
  });
  const reply = newReply();
  const mine = newChoice();
  const written = new Map(); // streamed arguments by call
  for await (const part of stream.fullStream) addPart(reply, mine, written, part);
  reply.choices[0] = mine;
  return reply;
}

function addPart(reply, mine, written, part) {
  switch (part.type) {
    case "text-delta":
      mine.text += part.text;
      break;
    case "reasoning-delta":
      mine.reasoning += part.text;
      break;
    case "tool-input-start":
      written.set(part.id, "");
      break;
    case "tool-input-delta":
      written.set(part.id, written.get(part.id) + part.delta);
      break;
    case "tool-call":
      mine.tools.push([part.toolCallId, part.toolName, written.get(part.toolCallId)]);
      break;
    case "finish-step": {
      const { inputTokens, outputTokens, totalTokens } = part.usage;
      mine.finish = part.rawFinishReason ?? null;
      reply.usage = inputTokens === undefined ? null : [inputTokens, outputTokens, totalTokens];
      break;
    }
    case "error":
      // The SDK forwards errors of the server unchanged, and raises its own as Error.
      if (part.error instanceof Error || typeof part.error?.message !== "string") throw part.error;
      reply.error = part.error.message;
      break;
  }
}

const CLIENTS = { openai, "openai.stream": openaiHelper, "ai-sdk": aiSdk };

async function answer(line) {
  const job = JSON.parse(line);
  loose = null;
  const late = AbortSignal.timeout(LIMIT_MS);
  const tooLate = new Promise((_, reject) => late.addEventListener("abort", () => reject(new Error("no end in time"))));
  try {
    const reply = await Promise.race([CLIENTS[job.client](job), tooLate]);
    if (loose) throw loose;
    return reply;
  } catch (error) {
    return { crash: String(error?.stack ?? error) };
  }
}

// An unhandled rejection belongs to the current stream and must not end the process.
let loose = null;
process.on("unhandledRejection", (error) => (loose = error));

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(line))}\n`);
}
process.exit(0); // open keep-alive connections would keep the process running
