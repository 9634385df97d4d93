// An exchange as a trace, which `welldone lint`, `fix` and `mock` read, and the inspector too.

/** @import { Exchange } from "../exchange.js" */
/** @import { Tape } from "./tape.js" */

/** @typedef {{name: string, record: object}} Trace */

/**
 * What we were sent.
 *
 * @param {Exchange} exchange
 * @returns {Trace}
 */
export function ourTrace(exchange) {
  const { frames, status, headers, path, body, outcome, error } = exchange;
  const record = {
    server: "welldone",
    endpoint: `/${path}`,
    method: "POST",
    request_id: exchange.requestId,
    request: body,
    status: status === null ? null : `HTTP/1.1 ${status}`,
    headers,
    // One that we left may have gone on.
    body_complete: outcome === "stopped" ? null : outcome === "whole" && exchange.droppedFrames === 0,
    ...(error === null && outcome !== "stopped" ? {} : { error: error ?? "stopped" }),
    pieces: pieces(frames.map(({ at, size }) => [at / 1000, size])),
    body_text: frames.map(({ raw }) => raw).join(""),
  };
  return { name: fileName(exchange, "sent"), record };
}

/**
 * What the upstream said: of several attempts the last one, of several parts the first one.
 *
 * @param {Exchange} exchange
 * @param {Tape} tape
 * @returns {Trace}
 */
export function upstreamTrace(exchange, tape) {
  const part = tape.steps[0]?.part ?? 0;
  const ours = tape.steps.filter((step) => step.part === part);
  const attempt = Math.max(...ours.map((step) => step.attempt), 0);
  const asked = tape.attempts[attempt];
  const steps = ours.filter((step) => step.attempt === attempt);
  const heard = steps.map(bytesOf);
  const record = {
    server: asked?.server ?? "upstream",
    endpoint: `/${exchange.path}`,
    method: "POST",
    request_id: exchange.requestId,
    request: tape.request,
    status: asked?.status ? `HTTP/1.1 ${asked.status}` : null,
    headers: asked?.headers ?? [],
    body_complete: exchange.outcome === "stopped" ? null : tape.isDone && !tape.isCut && !asked?.error,
    ...(asked?.error ? { error: asked.error } : {}),
    pieces: pieces(steps.map((step, place) => [step.at_s ?? 0, heard[place].length])),
    ...bodyOf(steps, heard),
  };
  return { name: fileName(exchange, "upstream"), record };
}

/**
 * Bytes that came together are one piece.
 *
 * @param {[number, number][]} timed seconds and sizes
 */
function pieces(timed) {
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
 * @param {Uint8Array[]} heard
 */
function bodyOf(steps, heard) {
  if (steps.every((step) => step.heard_base64 === undefined)) {
    return { body_text: steps.map((step) => step.heard).join("") };
  }
  const letters = heard.map((bytes) => [...bytes].map((byte) => String.fromCharCode(byte)).join(""));
  return { body_base64: btoa(letters.join("")) };
}

/**
 * The bytes of an upstream's frame.
 *
 * @param {Step} step
 */
export function bytesOf(step) {
  if (step.heard_base64 === undefined) return new TextEncoder().encode(step.heard);
  return Uint8Array.from(atob(step.heard_base64), (letter) => letter.charCodeAt(0));
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
