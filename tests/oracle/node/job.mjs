// Protocol of the JavaScript clients of tests/clients: one JSON line per job, one JSON line per result.
// tests/clients/programs/job.py defines the fields of a job.

import dns from "node:dns";
import { createInterface } from "node:readline";

// The server is addressed by number. A name lookup means that a client tries to connect elsewhere.
dns.lookup = (name) => {
  console.error(`tried to connect to ${name}`);
  process.exit(70);
};

// Some clients print to standard output: send that to standard error, so that only results are read.
console.log = console.info = console.warn = console.error;

export const LIMIT_MS = 100_000;

export async function answerJobs(scenarios) {
  for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const result = await attempt(scenarios[job.scenario], job);
    process.stdout.write(JSON.stringify(result) + "\n");
  }
  process.exit(0); // open keep-alive connections would keep the process running
}

async function attempt(scenario, job) {
  try {
    return await scenario(job);
  } catch (error) {
    return { crash: String(error?.stack ?? error) };
  }
}

// Runs `ask`, which must fail; `isTheirs` tests whether the error is one of the client library.
export async function refused(ask, isTheirs, nameOf, statusOf) {
  try {
    await ask();
  } catch (error) {
    if (!isTheirs(error)) throw error;
    return { error: nameOf(error), status: statusOf(error), message: String(error.message) };
  }
  return { error: null };
}

// Result for an answer: text, tool calls and finish reason of each choice.
export const answerResult = (choices, usage) => ({ choices, usage: usage ?? null, error: null });

// Wraps a scenario so that an exception of the client becomes part of its result.
export const catchingErrors = (read) => async (job) => {
  try {
    return await read(job);
  } catch (error) {
    const name = error?.constructor?.name ?? typeof error;
    return { choices: [], usage: null, error: `${name}: ${error?.message ?? JSON.stringify(error)}` };
  }
};

// What a client returned to its user for one answer, including a partial one.
export const emptyAnswer = () => ({ pieces: [], thoughts: [], calls: [], finish: null, usage: null, error: null });

// Wraps a scenario that fills `shown`; an exception of the client becomes its error.
export const attempted = (read) => async (job) => {
  const shown = emptyAnswer();
  try {
    await read(job, shown);
  } catch (error) {
    const name = error?.constructor?.name ?? typeof error;
    shown.error = `${name}: ${error?.message ?? JSON.stringify(error)}`;
  }
  return shown;
};

// Parsed arguments of a call; a string if they are not JSON, because the answer ended early.
export function valueOf(written) {
  try {
    return JSON.parse(written);
  } catch {
    return written;
  }
}
