// An exchange as a trace file for `welldone lint`, `fix` and `mock`, and for the inspector.

/** @import { Exchange } from "../exchange.js" */
/** @import { UpstreamCapture } from "./capture.js" */

/** @typedef {{name: string, record: object}} Trace */

/**
 * The trace of the stream sent to the client.
 *
 * @param {Exchange} exchange
 * @returns {Trace}
 */
export function sentTrace(exchange) {
  const { frames, status, headers, path, body, outcome, error } = exchange;
  const record = {
    server: "welldone",
    endpoint: `/${path}`,
    method: "POST",
    request_id: exchange.requestId,
    request: body,
    status: status === null ? null : `HTTP/1.1 ${status}`,
    headers,
    // A stopped response may have continued.
    body_complete: outcome === "stopped" ? null : outcome === "whole" && exchange.droppedFrames === 0,
    ...(error === null && outcome !== "stopped" ? {} : { error: error ?? "stopped" }),
    pieces: mergeReads(frames.map(({ at, size }) => [at / 1000, size])),
    body_text: frames.map(({ raw }) => raw).join(""),
  };
  return { name: fileName(exchange, "sent"), record };
}

/**
 * The trace of the upstream's stream: the last attempt at the first part.
 *
 * @param {Exchange} exchange
 * @param {UpstreamCapture} capture
 * @returns {Trace}
 */
export function upstreamTrace(exchange, capture) {
  const part = capture.steps[0]?.part ?? 0;
  const partSteps = capture.steps.filter((step) => step.part === part);
  const attempt = Math.max(...partSteps.map((step) => step.attempt), 0);
  const target = capture.attempts[attempt];
  const steps = partSteps.filter((step) => step.attempt === attempt);
  const received = steps.map(bytesOf);
  const record = {
    server: target?.server ?? "upstream",
    endpoint: `/${exchange.path}`,
    method: "POST",
    request_id: exchange.requestId,
    request: capture.request,
    status: target?.status ? `HTTP/1.1 ${target.status}` : null,
    headers: target?.headers ?? [],
    body_complete: exchange.outcome === "stopped" ? null : capture.isDone && !capture.isCut && !target?.error,
    ...(target?.error ? { error: target.error } : {}),
    pieces: mergeReads(steps.map((step, index) => [step.at_s ?? 0, received[index].length])),
    ...bodyOf(steps, received),
  };
  return { name: fileName(exchange, "upstream"), record };
}

/**
 * Merge reads with the same time.
 *
 * @param {[number, number][]} timed seconds and sizes
 */
function mergeReads(timed) {
  /** @type {[number, number][]} */
  const found = [];
  for (const [at, size] of timed) {
    const last = found.at(-1);
    if (last && last[0] === at) last[1] += size;
    else if (size > 0) found.push([at, size]);
  }
  return found.map(([at, size]) => [Math.round(at * 1e6) / 1e6, size]);
}

/**
 * @param {Step[]} steps
 * @param {Uint8Array[]} received
 */
function bodyOf(steps, received) {
  if (steps.every((step) => step.received_base64 === undefined)) {
    return { body_text: steps.map((step) => step.received).join("") };
  }
  const characters = received.map((bytes) => [...bytes].map((byte) => String.fromCharCode(byte)).join(""));
  return { body_base64: btoa(characters.join("")) };
}

/**
 * The bytes received for a step.
 *
 * @param {Step} step
 */
export function bytesOf(step) {
  if (step.received_base64 === undefined) return new TextEncoder().encode(step.received);
  return Uint8Array.from(atob(step.received_base64), (characters) => characters.charCodeAt(0));
}

/**
 * @param {Exchange} exchange
 * @param {string} side
 */
function fileName(exchange, side) {
  const time = exchange.startedAt.toISOString().replace(/[-:]/g, "").slice(0, 15);
  const model = String(exchange.body.model ?? "model").replace(/[^A-Za-z0-9.-]+/g, "-").slice(0, 60);
  return `${time}Z_${model}_${side}.json`;
}
