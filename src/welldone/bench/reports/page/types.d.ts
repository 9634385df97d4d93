// The JSON report, as far as the page reads it (docs/bench-report.schema.json).

interface Distribution {
  count: number;
  mean: number | null;
  minimum: number | null;
  maximum: number | null;
  percentiles: Record<string, number>;
}

interface BenchRecord {
  due_s: number;
  sent_s: number;
  reasoning_s: number | null;
  content_s: number | null;
  tool_s: number | null;
  times: number[];
  tokens: number | null;
  ended_s: number;
  outcome: string;
  error: string;
}

interface StepResult {
  id: string;
  target: string;
  is_open: boolean;
  max_vus: number;
  rate: number | null;
  seconds: number;
  due: number;
  skipped: number;
  outcomes: Record<string, number>;
  reasons: Record<string, number>;
  invalid_streams: number;
  rules: Record<string, number>;
  good: number | null;
  request_rate: number;
  token_rate: number;
  prompt_tokens: number | null;
  decoded_tokens: number | null;
  times: Record<string, Distribution>;
  client: { cpu: number; late_starts: number; max_delay_s: number; is_bottleneck: boolean };
  records: BenchRecord[];
}

interface Comparison {
  metric: string;
  first: number;
  second: number;
  ratio: number;
  low: number;
  high: number;
}

interface BenchReport {
  version: number;
  tool: string;
  began: string;
  ended: string;
  url: string;
  against: string | null;
  endpoint: string;
  model: string;
  kind: string;
  config: Record<string, unknown>;
  tokenizer: string;
  is_complete: boolean;
  incomplete_reason: string;
  steps: StepResult[];
  comparisons: Comparison[];
  assertion_results: { text: string; step: string; value: number | null; passed: boolean }[];
  system: Record<string, unknown>;
}

/** A bar of a plot with rows: its spans, and what is shown while the pointer is on it. */
interface Bar {
  row: number;
  spans: { from: number; to: number; ink: string; alpha: number; minWidth?: number }[];
  words: string;
}
