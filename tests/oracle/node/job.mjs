// How a JavaScript client of tests/clients gets its jobs and answers them: a JSON line for a JSON line.
// What a job holds is said in tests/clients/programs/job.py.

import dns from "node:dns";
import { createInterface } from "node:readline";

// The server has a number for an address. Whoever asks for a name wants to reach something else, and no client may.
dns.lookup = (name) => {
  console.error(`wanted to reach ${name}`);
  process.exit(70);
};

// Some clients print; what they print goes where no answer is awaited.
console.log = console.info = console.warn = console.error;

export const LIMIT_MS = 100_000;

export async function answerJobs(scenarios) {
  for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const saw = await attempt(scenarios[job.scenario], job);
    process.stdout.write(JSON.stringify(saw) + "\n");
  }
  process.exit(0); // open keep-alive connections would hold it
}

async function attempt(scenario, job) {
  try {
    return await scenario(job);
  } catch (error) {
    return { crash: String(error?.stack ?? error) };
  }
}

// Runs `ask`, which must be refused; `isTheirs` says whether the error is one of the client's own.
export async function refused(ask, isTheirs, nameOf, statusOf) {
  try {
    await ask();
  } catch (error) {
    if (!isTheirs(error)) throw error;
    return { error: nameOf(error), status: statusOf(error), message: String(error.message) };
  }
  return { error: null };
}

// An answer as the client gave it to its user: of each choice the text, the calls and the finish reason.
export const heard = (choices, usage) => ({ choices, usage: usage ?? null, error: null });

// A scenario of which an error is an answer like any other: what the client raises, it tells its user.
export const telling = (read) => async (job) => {
  try {
    return await read(job);
  } catch (error) {
    const name = error?.constructor?.name ?? typeof error;
    return { choices: [], usage: null, error: `${name}: ${error?.message ?? JSON.stringify(error)}` };
  }
};

// What a client has shown its user of one answer, also of one that broke off.
export const emptySaid = () => ({ pieces: [], thoughts: [], calls: [], finish: null, usage: null, error: null });

// A scenario that fills `said`; what the client raises on the way, it tells its user.
export const attempted = (read) => async (job) => {
  const said = emptySaid();
  try {
    await read(job, said);
  } catch (error) {
    const name = error?.constructor?.name ?? typeof error;
    said.error = `${name}: ${error?.message ?? JSON.stringify(error)}`;
  }
  return said;
};

// The arguments of a call as a value; as they are where they are none, since the answer ended in them.
export function valueOf(written) {
  try {
    return JSON.parse(written);
  } catch {
    return written;
  }
}
