// The responses of `/api/v1`, as docs/json.md describes them: the fields that the page uses. (Over 400 lines: a list of
// fields.)

export type Severity = 'critical' | 'warning' | 'info';

/** What a job's memory did: its verdict. */
export interface Memory {
  kind: string;
  cause: string | null;
  sentence: string;
  fits: boolean | null;
}

/** The same in the list of jobs, with the worst finding; from an older daemon only the finding. */
export interface Verdict extends Partial<Memory> {
  severity: Severity | null;
  finding: string | null;
  title: string | null;
  findings: number;
  inconclusive: string | null;
}

export interface JobRow {
  /** Its address: its name, and after # its run if the name has several. */
  id: string;
  name: string;
  run: number | null;
  arrived_at: string;
  state: 'running' | 'finished' | 'failed' | 'lost';
  started_at: string;
  ended_at: string | null;
  world_size: number | null;
  attempt: number;
  attempts: number;
  labels: Record<string, string>;
  events: number;
  stored_bytes: number;
  ranks: number;
  source: string | null;
  tenant: string;
  verdict: Verdict | null;
}

export interface Jobs {
  jobs: JobRow[];
}

export interface Completeness {
  exact: boolean;
  events_stored: number;
  events_dropped: number;
  gaps: number;
  events_expired: number;
}

export interface Frame {
  function: string;
  file: string;
  line: number | null;
}

export interface GrowingHolder {
  kind: string;
  sentence: string;
  chain: string[];
  blocks: number;
  tensors: number | null;
  tensors_before: number | null;
  since_epoch: number | null;
}

export interface FindingHolders {
  sentence: string;
  unasked: boolean;
  failure: string | null;
  asked_blocks: number | null;
  holders: GrowingHolder[];
  took_seconds: number | null;
  not_looked_at: string[];
}

export interface Finding {
  id: string;
  kind: string;
  severity: Severity;
  confidence: number | null;
  ranks: number[];
  all_ranks: boolean;
  first_seen: { epoch: number | null; step: number | null; at: string | null };
  live_bytes: number | null;
  site: (Frame & { stack: Frame[] }) | null;
  title: string;
  explanation: string;
  advice: string;
  /** Figures and facts; `rank` is the one that the figures are of. */
  evidence: Record<string, unknown>;
  processes: string[];
  holders: FindingHolders | null;
}

export interface NotJudged {
  kind: string;
  reason: string;
  remedy: string | null;
  gap: 'whole' | 'part';
  decides: boolean;
}

export interface Judged {
  processes: number;
  ranks: number[];
  epoch_ends: number;
  steps: number;
  windows: number;
}

export interface Question {
  question: string;
  answer: string[];
  before: string[];
  after: string[];
  commands: string[];
}

export interface Diagnosis {
  job: JobRow;
  completeness: Completeness;
  severity: Severity | 'none' | 'inconclusive';
  summary: string;
  verdict: Memory | null;
  questions: Question[];
  findings: Finding[];
  judged: Judged;
  not_judged: NotJudged[];
}

export interface EpochEnd {
  epoch: number;
  at: string;
  allocated_bytes: number | null;
}

export interface Rank {
  rank: number;
  process: string;
  host: string | null;
  device: number;
  gpu_name: string | null;
  epochs: number;
  steps: number;
  state: string;
  failure: string | null;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  peak_allocated_bytes: number | null;
  peak_reserved_bytes: number | null;
  growth_bytes_per_epoch: number | null;
  fragmentation_ratio: number | null;
  device_total_bytes: number | null;
  ooms: number;
  epoch_ends: EpochEnd[];
  stands_out: string[];
  findings: string[];
  completeness: Completeness;
}

export interface Report {
  job: JobRow;
  completeness: Completeness;
  ranks: Rank[];
  findings: Finding[];
}

export interface Point {
  first_at: string;
  last_at: string;
  epoch: number;
  step: number;
  allocated_bytes: number;
  reserved_bytes: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  min_allocated_bytes: number;
}

export interface Mark {
  at: string;
  kind: string;
  value: number | null;
  name: string | null;
}

export interface RankTimeline {
  rank: number;
  process: string;
  device: number;
  points: Point[];
  marks: Mark[];
  /** The lowest level up to the last boundary; each step holds until its time. */
  floor?: { until: string; allocated_bytes: number }[];
}

export interface Timeline {
  job: JobRow;
  ranks: RankTimeline[];
}

export interface FailedRequest {
  rank: number;
  process: string;
  device: number;
  at: string;
  asked_bytes: number;
  cause: string;
  reserved_bytes: number;
  allocated_bytes: number;
  largest_usable_bytes: number;
  flushed_bytes: number;
  stranded_bytes: number;
  device_free_bytes: number;
  limit_at_least_bytes: number | null;
  limit_below_bytes: number | null;
}

export interface Oom {
  failed: number;
  failures: FailedRequest[];
}

export interface Site {
  live_bytes: number;
  live_blocks: number;
  site: Frame | null;
  stack: Frame[];
}

export interface RankSites {
  rank: number;
  process: string;
  device: number;
  at: string;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number | null;
  sites: Site[];
}

export interface Sites {
  ranks: RankSites[];
}

export interface LedgerRank {
  rank: number;
  process: string;
  device: number;
  at: string;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number;
  classes: { class: string; live_bytes: number; share: number }[];
  cached_bytes: number;
  nccl_bytes: number | null;
  context_bytes: number | null;
  others_bytes: number | null;
  unmeasured_bytes: number | null;
  unexplained_bytes: number | null;
  device_used_bytes: number | null;
  device_total_bytes: number | null;
  measured_at: string | null;
}

export interface Ledger {
  ranks: LedgerRank[];
}

export interface FlameMoment {
  at: string;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
}

export interface FlameCall {
  depth: number;
  kind: 'all' | 'frame' | 'library' | 'owner' | 'no_stack' | 'smaller';
  owner: string | null;
  frames: Frame[];
  own: boolean;
  bytes: number;
  grown_bytes: number;
  shrunk_bytes: number;
  live_blocks: number;
  class: string | null;
}

export interface Flame {
  job: JobRow;
  rank: number;
  process: string;
  at: FlameMoment;
  from: FlameMoment | null;
  unchanged_bytes: number;
  calls: FlameCall[];
  calls_left_out: number;
}

export interface Known {
  name: string;
  role: string;
  tenant: string;
  signed_in: boolean;
  version: string;
}

export interface Sparkline {
  rank: number | null;
  peak_allocated_bytes: number[];
  min_allocated_bytes: number[];
  reserved_bytes: number[];
}

export interface HeatRow {
  rank: number;
  process: string;
  device: number;
  host: string | null;
  failure: string | null;
  stands_out: string[];
  diverges_at: number | null;
  allocated_bytes: (number | null)[];
}

export interface Heat {
  epochs: number[];
  median_bytes: (number | null)[];
  /** A rank further above the median than this is an outlier. */
  limit_bytes: (number | null)[];
  ranks: HeatRow[];
}

export interface SegmentLife {
  address: number;
  bytes: number;
  stream: string;
  pool: string | null;
  owner: string | null;
  small: boolean;
  expandable: boolean;
  from_event: number | null;
  to_event: number | null;
}

export interface Blocks {
  rank: number;
  process: string;
  device: number;
  exact: boolean;
  at_event: number;
  first_event: number;
  last_event: number;
  stored_from_event: number;
  stored_to_event: number;
  course: {
    first_at: string;
    event: number[];
    elapsed_ns: number[];
    epoch: number[];
    step: number[];
    allocated_bytes: number[];
    reserved_bytes: number[];
  };
  segments: SegmentLife[];
  blocks: {
    address: number[];
    bytes: number[];
    requested_bytes: number[];
    stack: number[];
    class: number[];
    birth_epoch: number[];
    birth_step: number[];
    from_event: (number | null)[];
    freed_event: (number | null)[];
    to_event: (number | null)[];
  };
  blocks_left_out: number;
  classes: string[];
  frames: Frame[];
  stacks: number[][];
  sites: (number | null)[];
  owners: (string | null)[];
  failures: { event: number; bytes: number; stream: string }[];
  rules: { round_bytes: number; small_bytes_max: number };
}

export interface Alert {
  id: string;
  rule: string;
  state: 'pending' | 'firing' | 'resolved';
  job: string;
  run: number | null;
  attempt: number;
  kind: string;
  severity: Severity;
  title: string;
  advice: string;
  since: string;
  fired_at: string | null;
  resolved_at: string | null;
  silenced_by: string | null;
  receivers: { receiver: string; told: string | null; last_error: string | null }[];
  tenant: string;
}

export interface Alerts {
  alerts: Alert[];
  jobs: { jobs: number; imported: number; not_judged: string[] } | null;
}

export interface Silence {
  id: string;
  job: string | null;
  kind: string | null;
  rule: string | null;
  ranks: number[];
  ends_at: string;
  author: string | null;
  comment: string | null;
  tenant: string;
}

export interface Silences {
  silences: Silence[];
}

export interface Classes {
  classes: string[];
  points: { at: string; boundary: string; epoch: number; step: number; exact: boolean; bytes: number[] }[];
  points_left_out: number;
  /** Consecutive stretches with the classes of their highest moments; empty where there are too many events. */
  slots?: { from: string; until: string; bytes: number[] }[];
  looked_until: string | null;
}

export interface AnatomyPart {
  class: string;
  module: string | null;
  site: Frame | null;
  live_bytes: number;
  live_blocks: number;
}

export interface Anatomy {
  rank: number;
  process: string;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number;
  classes: { class: string; live_bytes: number; share: number }[];
  modules: { module: string | null; live_bytes: number; live_blocks: number }[];
  parts: AnatomyPart[];
  modules_left_out: number;
  parts_left_out: number;
  left_out_bytes: number;
}

export interface Setting {
  allocator_conf: string;
  limit_bytes: number | null;
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  device_allocs: number;
  device_frees: number;
  retries: number;
  out_of_memory: { event: number; step: number | null; requested_bytes: number; site: Frame | null } | null;
  cautions: string[];
}

export interface Replayed {
  rank: number;
  process: string;
  device: number;
  exact: boolean;
  recorded: { allocator_conf: string; torch: string | null; peak_reserved_bytes: number };
  replayed: { peak_reserved_bytes: number; differs_at: { event: number; step: number | null } | null };
  settings: Setting[];
  recommended: { allocator_conf: string; saves_bytes: number; why: string } | null;
}

export interface WhatIf {
  ranks: Replayed[];
  not_looked_at: string[];
}

export interface FitSize {
  size: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  low: number;
  high: number;
  fits: boolean | null;
}

export interface Scaled {
  requests: number;
  fixed: number;
  fixed_bytes: number;
  proportional: number;
  proportional_bytes: number;
  doubtful: number;
  doubtful_bytes: number;
}

export interface Fit {
  recordings: { size: number | null; peak_reserved_bytes: number; peak_allocated_bytes: number; exact: boolean }[];
  scaled: Scaled | null;
  device_memory_bytes: number | null;
  at: FitSize[];
  largest_that_fits: number | null;
  not_looked_at: string[];
}
