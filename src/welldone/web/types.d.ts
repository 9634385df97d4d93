// Types shared by modules of the page: JSON of the server, and what views receive.

/** One frame of an upstream with its events, its repairs and the bytes sent for it. */
interface Step {
  n: number;
  part: number;
  attempt: number;
  at_s: number | null;
  byte: number;
  received: string;
  received_base64?: string;
  events: WireEvent[];
  repairs: StepRepair[];
  sent: string;
}

interface WireEvent {
  type: string;
  [field: string]: unknown;
}

interface StepRepair {
  rule: string;
  severity: string;
  repairability: string;
  repair: string;
  expected: string;
  observed: string;
  count: number;
}

interface Attempt {
  server: string;
  status: number | null;
  headers: [string, string][];
  error: string | null;
  began_s: number;
  is_local: boolean;
  continues: "prefill" | "replay" | null;
}

/** The reply to a read of a capture. */
interface CaptureReply {
  id: string;
  endpoint: string;
  model: string;
  is_stream: boolean;
  is_done: boolean;
  is_cut: boolean;
  attempts: Attempt[];
  request: object;
  steps: Step[];
  next: number;
}

interface Finding {
  rule: string;
  severity: string;
  frame: number | null;
  byte: number | null;
  observed: string;
  expected: string;
  affects: string[];
}

interface LintResult {
  endpoint: string;
  reply_kind: string;
  verdict: "pass" | "warn" | "fail";
  findings: Finding[];
  steps: Step[];
  fixed: string;
  error: { message: string; type: string; code: string | null } | null;
  usage: object | null;
  is_cut: boolean;
}

interface RulePage {
  id: string;
  summary: string;
  severity: string;
  repairability: string;
  repair: string;
  affects: string[];
  endpoints: string[];
  page: string;
}

interface ModelState {
  id: string;
  state: "unloaded" | "loading" | "ready" | "restarting" | "failed" | "stopped";
  error: string | null;
  slots: number;
  running: number;
  waiting: number;
  queue: number;
  mean_wait_s: number | null;
  context: number | null;
  size_bytes: number | null;
  parameters: number | null;
  restarts: number;
  idle_s: number | null;
  capabilities: string[];
}

interface DownloadState {
  state: "idle" | "running" | "done" | "failed" | "cancelled";
  source: string;
  file: string;
  done_bytes: number;
  total_bytes: number | null;
  error: string | null;
  model: string | null;
}

interface UpstreamState {
  name: string;
  kind: string | null;
  is_healthy: boolean;
  trouble: string | null;
  failing: string | null;
  breaker: "closed" | "open" | "half-open";
  running: number;
  waiting: number;
  limit: number;
  models: string[];
  retry_after_s: number;
  ttft_s: { p50: number | null; p95: number | null; count: number };
  findings: { rule: string; severity: string; count: number }[];
  attempts: Record<string, number>;
  /** Requests of the last five minutes. */
  window: { requests: number; failures: number; repaired: number; breaking: number };
}

interface KeyState {
  name: string;
  requests: { limit: number; remaining: number } | null;
  tokens: { limit: number; remaining: number } | null;
  spent: { requests: number; tokens: number };
}

/** A stored API key, without the key. */
interface StoredKey {
  name: string;
  models: string[];
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  admin: boolean;
  metrics: boolean;
}

interface RecentRequest {
  at: number;
  request_id: string;
  principal: string;
  method: string;
  path: string;
  status: number;
  duration_ms: number;
  model?: string;
  ttft_ms?: number;
  queued_ms?: number;
  prompt_tokens?: number;
  completion_tokens?: number;
  error?: string;
  has_left?: boolean;
  repaired?: string[];
  upstream?: string;
  failed?: string[];
  is_recorded?: boolean;
}

interface ServerState {
  version: string;
  now: number;
  uptime_s: number;
  workers: number;
  is_admin: boolean;
  principal: string;
  has_metrics: boolean;
  is_recording: boolean;
  is_draining: boolean;
  has_key_store: boolean;
  models: ModelState[];
  download: DownloadState | null;
  upstreams: UpstreamState[];
  keys: KeyState[];
  recent: RecentRequest[];
}

interface ApiOptions {
  method?: string;
  json?: unknown;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** What every view receives. */
interface Page {
  /**
   * Events between views: "exchange" (an Exchange that starts), "trace" ({name, text, request} to open in the
   * inspector), "close-inspector", "view" ("chat", "server" or "compare").
   */
  bus: EventTarget;
  /** Base URL of the server. */
  base: URL;
  api(path: string, options?: ApiOptions): Promise<Response>;
  json<T>(path: string, options?: ApiOptions): Promise<T>;
}

/** A captured stream to open in the inspector. */
interface CaptureFile {
  name: string;
  text: string;
  request?: object;
}
