// Shapes that several modules of the page share: what the server says to it, and what views are given.

/** One frame of an upstream, and what became of it. */
interface Step {
  n: number;
  part: number;
  attempt: number;
  at_s: number | null;
  byte: number;
  heard: string;
  heard_base64?: string;
  events: WireEvent[];
  notes: StepNote[];
  said: string;
}

interface WireEvent {
  type: string;
  [field: string]: unknown;
}

interface StepNote {
  rule: string;
  severity: string;
  mend: string;
  how: string;
  wanted: string;
  heard: string;
  count: number;
}

interface Attempt {
  server: string;
  status: number | null;
  headers: [string, string][];
  error: string | null;
  began_s: number;
  is_local: boolean;
}

interface Taped {
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
  heard: string;
  wanted: string;
  hurts: string[];
}

interface Linted {
  endpoint: string;
  form: string;
  verdict: "right" | "lax" | "wrong";
  findings: Finding[];
  steps: Step[];
  fixed: string;
  error: { message: string; type: string; code: string | null } | null;
  usage: object | null;
  is_cut: boolean;
}

interface RulePage {
  id: string;
  rule: string;
  severity: string;
  mend: string;
  how: string;
  hurts: string[];
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
  findings: { rule: string; count: number }[];
  attempts: Record<string, number>;
}

interface KeyState {
  name: string;
  requests: { limit: number; remaining: number } | null;
  tokens: { limit: number; remaining: number } | null;
  spent: { requests: number; tokens: number };
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
  mended?: string[];
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
  models: ModelState[];
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

/** What every view is given. */
interface Page {
  /**
   * Carries news between views: "exchange" (an Exchange that starts), "trace" ({name, text, request} to open in the
   * inspector), "close-inspector", "view" ("chat" or "server").
   */
  bus: EventTarget;
  /** Where the server is. */
  base: URL;
  api(path: string, options?: ApiOptions): Promise<Response>;
  json<T>(path: string, options?: ApiOptions): Promise<T>;
}

/** A captured stream to be opened in the inspector. */
interface Capture {
  name: string;
  text: string;
  request?: object;
}
