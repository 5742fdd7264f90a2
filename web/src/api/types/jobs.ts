// The responses of `/api/v1`. docs/json.md describes their fields.
//
// Generated from the structs in answers/: `MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript` writes this file.
// (Over 400 lines: a list of fields.)

/** Advice about one device. */
export interface Advice {
  rank: number;
  process: string;
  says: string[];
  not_replayed: string | null;
  device: RankReplays | null;
}

/** One alert. */
export interface Alert {
  id: Id;
  rule: string;
  state: Phase;
  job: string;
  run: number | null;
  attempt: number;
  labels: Record<string, string>;
  annotations: Record<string, string>;
  since: Time;
  fired_at: Time | null;
  resolved_at: Time | null;
  seen_at: Time;
  silenced_by: string | null;
  receivers: Receiver[];
  tenant: string;
  finding: Id;
  kind: string;
  severity: Severity;
  confidence: number;
  ranks: number[];
  rank_count: number;
  all_ranks: boolean;
  title: string;
  explanation: string;
  advice: string;
}

/** Alerts, firing ones first. */
export interface Alerts {
  schema: number;
  alerts: Alert[];
  refused: number;
  given_up: number;
  jobs: Watched | null;
}

/** A point of a recording. */
export interface At {
  event: number;
  step: number | null;
}

/** Where epochs and steps come from. */
export interface Boundaries {
  epochs: string;
  steps: string;
  windows: number;
  found_by: string | null;
}

/** Bytes of a class. */
export interface Class {
  class: string;
  live_bytes: number;
}

/** Bytes of a class. */
export interface ClassShare {
  class: string;
  live_bytes: number;
  share: number;
}

/** How complete the data behind an answer is. */
export interface Completeness {
  exact: boolean;
  events_stored: number;
  events_dropped: number;
  gaps: number;
  events_expired: number;
  items_damaged: number;
}

/** The note. */
export interface Diagnosis {
  schema: number;
  job: Job;
  completeness: Completeness;
  severity: Severity | 'none' | 'inconclusive';
  summary: string;
  questions: Question[];
  usage: Usage | null;
  findings: Finding[];
  verdict: Verdict | null;
  replay: Advice | null;
  judged: Judged;
  not_judged: NotJudged[];
}

/** A request that fails. */
export interface Ended {
  event: number;
  step: number | null;
  requested_bytes: number;
  site: Frame | null;
}

/** The end of one epoch on one rank. */
export interface EpochEnd {
  epoch: number;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  peak_allocated_bytes: number | null;
  peak_reserved_bytes: number | null;
  epoch_peak_allocated_bytes: number | null;
  epoch_peak_reserved_bytes: number | null;
  active_bytes: number | null;
  requested_bytes: number | null;
  inactive_split_bytes: number | null;
  largest_free_bytes: number | null;
  allocated_blocks: number | null;
  segments: number | null;
  step: number;
  at: Time;
  exact: boolean;
}

/** One figure or fact; null if a figure is not a number. */
export type Evidence = number | null | string | number[];

/** One failed request. */
export interface Failed {
  rank: number;
  process: string;
  device: number;
  at: Time;
  epoch: number | null;
  step: number | null;
  cause: string;
  site: FindingSite | null;
  asked_bytes: number;
  reserved_bytes: number;
  active_bytes: number;
  allocated_bytes: number;
  free_in_cache_bytes: number;
  largest_usable_bytes: number;
  holes: number;
  flushed_bytes: number;
  stranded_bytes: number;
  missing_bytes: number;
  device_free_bytes: number;
  device_total_bytes: number | null;
  limit_at_least_bytes: number | null;
  limit_below_bytes: number | null;
  others_bytes: number | null;
  outside_bytes: number | null;
  expandable_segments_would_serve: boolean;
  classes: Class[];
  sites: Live[];
  held_by: StrandingHolder[];
  peers: Peer[];
  exact: boolean;
}

/** A problem: its place, its ranks, its severity, and what to do. */
export interface Finding {
  id: string;
  kind: string;
  severity: Severity;
  confidence: number | null;
  suspected: boolean;
  filled_device: boolean;
  ranks: number[];
  all_ranks: boolean;
  first_seen: FirstSeen;
  bytes_per_epoch: number | null;
  bytes_per_step: number | null;
  live_bytes: number | null;
  time_to_oom_seconds: number | null;
  site: FindingSite | null;
  title: string;
  explanation: string;
  advice: string;
  evidence: Record<string, Evidence>;
  live_blocks: number | null;
  epochs_to_oom: number | null;
  bytes_per_epoch_low: number | null;
  bytes_per_epoch_high: number | null;
  bytes_per_step_low: number | null;
  bytes_per_step_high: number | null;
  subject: string | null;
  pattern: string | null;
  processes: string[];
  bytes_per_minute: number | null;
  bytes_per_minute_low: number | null;
  bytes_per_minute_high: number | null;
  lines: number[];
  holders: FindingHolders | null;
  cause_known: boolean;
}

/** The known holders of a finding's blocks. */
export interface FindingHolders {
  sentence: string;
  rank: number;
  process: string;
  asked_at: Time;
  epoch: number | null;
  unasked: boolean;
  failure: string | null;
  live_blocks: number | null;
  live_bytes: number | null;
  asked_blocks: number | null;
  found_blocks: number | null;
  holders: GrowingHolder[];
  objects: number | null;
  took_seconds: number | null;
  budget_seconds: number;
  slices: number | null;
  longest_seconds: number | null;
  complete: boolean | null;
  not_looked_at: string[];
}

/** Where the memory of a finding was allocated. */
export interface FindingSite {
  stack: Frame[];
  function: string;
  file: string;
  line: number | null;
}

/** When a finding was first seen, as far as it is known. */
export interface FirstSeen {
  epoch: number | null;
  step: number | null;
  at: Time | null;
  boundary: string | null;
}

/** One line of a call stack. */
export interface Frame {
  function: string;
  file: string;
  line: number | null;
}

/** How much was not judged. */
export type Gap = 'part' | 'whole';

/** A holder, and its growth since the first search of the process. */
export interface GrowingHolder {
  tensors_before: number | null;
  since_epoch: number | null;
  pace: Pace | null;
  kind: string;
  sentence: string;
  chain: string[];
  blocks: number;
  bytes: number;
  tensors: number | null;
  holder: string;
  type: string;
  name: string | null;
  owner: string | null;
  length: number | null;
  bound: string;
  limit: number | null;
  thread: string | null;
  threads: number;
  collector: string | null;
  pattern: string | null;
}

/** A site that grew. */
export interface Growth {
  site: Frame | null;
  stack: Frame[];
  ranks: RankGrowth[];
}

/** An id, which is 16 hexadecimal digits in an answer. */
export type Id = string;

/** A job. */
export interface Job {
  id: string;
  name: string;
  run: number | null;
  state: JobState;
  started_at: Time;
  arrived_at: Time;
  ended_at: Time | null;
  world_size: number | null;
  attempt: number;
  labels: Record<string, string>;
  events: number;
  stored_bytes: number;
  ranks: number;
  processes: number;
  earlier_sessions: number;
  attempts: number;
  source: string | null;
  tenant: string;
  verdict: JobVerdict | null;
}

/** The state of a job, or of a process. */
export type JobState = 'running' | 'finished' | 'failed' | 'lost';

/** A job's verdict in brief. */
export interface JobVerdict extends Partial<Verdict> {
  severity: Severity | null;
  finding: string | null;
  title: string | null;
  findings: number;
  inconclusive: string | null;
}

/** Jobs, newest first. */
export interface Jobs {
  schema: number;
  jobs: Job[];
}

/** What was analysed. */
export interface Judged {
  processes: number;
  ranks: number[];
  epoch_ends: number;
  steps: number;
  windows: number;
  kinds: JudgedKind[];
}

/** A kind of finding that was judged. */
export interface JudgedKind {
  kind: string;
  boundaries: string[];
}

/** The caller over HTTP, as in `/api/v1/caller`. */
export interface Known {
  schema: number;
  name: string;
  role: Role;
  tenant: string;
  signed_in: boolean;
  version: string;
}

/** Live memory of one site. */
export interface Live {
  site: FindingSite | null;
  live_bytes: number;
  live_blocks: number;
  before_bytes: number | null;
}

/** What could not be judged. */
export interface NotJudged {
  kind: string;
  reason: string;
  remedy: string | null;
  gap: Gap;
  decides: boolean;
}

/** The failed requests of a job. */
export interface Oom {
  schema: number;
  job: Job;
  completeness: Completeness;
  failed: number;
  failures: Failed[];
  findings: Finding[];
  replay: Advice | null;
  judged: Judged;
  not_judged: NotJudged[];
}

/** The change of a holder's length, compared with the bytes of the site. */
export interface Pace {
  since: Time;
  length_before: number;
  length_now: number;
  bytes_before: number;
  bytes_now: number;
  grew_with_bytes: boolean;
}

/** Another rank. */
export interface Peer {
  rank: number;
  process: string;
  reserved_bytes: number;
  peak_allocated_bytes: number;
  device_free_bytes: number | null;
}

/** The state of an alert. */
export type Phase = 'pending' | 'firing' | 'resolved';

/** A process that allocated. */
export interface Process {
  process: string;
  role: string | null;
  rank: number;
  host: string | null;
  pid: number | null;
  parent_pid: number | null;
  devices: number[];
  events: number;
  stored_bytes: number;
  state: JobState;
  failure: string | null;
  started_at: Time;
  ended_at: Time | null;
  framework: string | null;
  completeness: Completeness;
}

/** A question and its answer. */
export interface Question {
  question: string;
  answer: string[];
  before: string[];
  after: string[];
  commands: string[];
}

/** One rank. */
export interface Rank {
  rank: number;
  process: string;
  host: string | null;
  pid: number | null;
  device: number;
  gpu_uuid: string | null;
  framework: string | null;
  allocator_conf: string;
  epochs: number;
  steps: number;
  events: number;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  peak_allocated_bytes: number | null;
  peak_reserved_bytes: number | null;
  device_used_bytes: number | null;
  fragmentation_ratio: number | null;
  growth_bytes_per_epoch: number | null;
  alloc_retries: number | null;
  ooms: number;
  epoch_ends: EpochEnd[];
  gpu_name: string | null;
  device_total_bytes: number | null;
  state: JobState;
  failure: string | null;
  stored_bytes: number;
  completeness: Completeness;
  sample: Sample | null;
  highest: Sample | null;
  levels_at: string;
  end_allocated_bytes: number | null;
  end_reserved_bytes: number | null;
  stands_out: string[];
  findings: string[];
  expandable_overruled: boolean;
}

/** A site's growth on one rank. */
export interface RankGrowth {
  rank: number;
  process: string;
  device: number;
  bytes_per_epoch: number;
  live_bytes: number;
  live_blocks: number;
  first_epoch: number;
  series_bytes: number[];
  explained_by: string | null;
}

/** One device of a rank. */
export interface RankReplays {
  rank: number;
  process: string;
  device: number;
  exact: boolean;
  recorded: Recorded;
  replayed: Replayed;
  settings: Setting[];
  recommended: Recommended | null;
}

/** What a receiver knows of an alert. */
export interface Receiver {
  receiver: string;
  notified: Phase | null;
  notified_at: Time | null;
  given_up: number;
  last_error: string | null;
}

/** The recommended setting. */
export interface Recommended {
  allocator_conf: string;
  saves_bytes: number;
  why: string;
}

/** What was recorded. */
export interface Recorded {
  allocator_conf: string;
  torch: string | null;
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  peak_requested_bytes: number;
  device_allocs: number;
  device_frees: number;
  retries: number | null;
}

/** The recorded settings, replayed. */
export interface Replayed {
  allocator_conf: string;
  torch: string | null;
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  peak_requested_bytes: number;
  device_allocs: number;
  device_frees: number;
  retries: number;
  differs_at: At | null;
}

/** Everything that `memctl query` prints. */
export interface Report {
  schema: number;
  job: Job;
  completeness: Completeness;
  ranks: Rank[];
  processes: Process[];
  findings: Finding[];
  growth: Growth[];
  boundaries: Boundaries;
  spread: Spread[];
  growth_through: Through | null;
  verdict: Verdict | null;
  judged: Judged;
  not_judged: NotJudged[];
}

/** The role of a caller. */
export type Role = 'agent' | 'reader' | 'operator' | 'admin';

/** The last measurement of each quantity within the last recorded half minute. */
export interface Sample {
  at: Time;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  device_used_bytes: number | null;
  device_total_bytes: number | null;
  process_used_bytes: number | null;
  foreign_used_bytes: number | null;
  utilisation: number | null;
  host_rss_bytes: number | null;
  children_rss_bytes: number | null;
}

/** One setting under one limit. */
export interface Setting {
  allocator_conf: string;
  limit_bytes: number | null;
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  device_allocs: number;
  device_frees: number;
  retries: number;
  out_of_memory: Ended | null;
  cautions: string[];
  bounds: number[] | null;
}

/** How serious a finding is. */
export type Severity = 'info' | 'warning' | 'critical';

/** A site's share of the live memory. */
export interface Share {
  site: Frame;
  live_bytes: number;
}

/** One silence; a criterion that is null matches everything. */
export interface Silence {
  id: string;
  job: string | null;
  kind: string | null;
  rule: string | null;
  ranks: number[];
  labels: Record<string, string>;
  created_at: Time;
  ends_at: Time;
  author: string | null;
  comment: string | null;
  tenant: string;
}

/** Silences. */
export interface Silences {
  schema: number;
  silences: Silence[];
}

/** The columns. */
export interface Sparkline {
  schema: number;
  rank: number | null;
  process: string | null;
  peak_allocated_bytes: number[];
  min_allocated_bytes: number[];
  reserved_bytes: number[];
}

/** The usual values among the ranks. */
export interface Spread {
  figure: string;
  median_bytes: number;
  mad_bytes: number;
  limit_bytes: number;
}

/** Live blocks of one site beside free memory. */
export interface StrandingHolder {
  site: FindingSite | null;
  live_blocks: number;
  live_bytes: number;
  segments: number;
  stranded_bytes: number;
  birth_epoch: number;
  birth_step: number;
  birth_phase: string | null;
}

/** A call through which much of the growing memory is allocated. */
export interface Through {
  bytes_per_epoch: number;
  total_bytes_per_epoch: number;
  function: string;
  file: string;
  line: number | null;
}

/** Nanoseconds since 1970; in an answer RFC 3339 in UTC, with all known digits. */
export type Time = string;

/** How much memory a rank uses, and for what. */
export interface Usage {
  rank: number;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  peak_allocated_bytes: number | null;
  peak_reserved_bytes: number | null;
  fragmentation_ratio: number | null;
  device_used_bytes: number | null;
  device_total_bytes: number | null;
  foreign_used_bytes: number | null;
  allocator_conf: string;
  moment: string;
  by: Share[];
  other_bytes: number;
  other_sites: number;
  peak_classes: ClassShare[];
  without_stack_bytes: number | null;
}

/** What a job's memory did: see `memctl_model::verdict`. */
export interface Verdict {
  kind: string;
  cause: string | null;
  memory: string | null;
  sentence: string;
  grown_bytes: number | null;
  seconds: number | null;
  site: Frame | null;
  ranks: number[];
  processes: string[];
  bound_bytes: number | null;
  fits: boolean | null;
  holder: string | null;
  lowest_bytes: number | null;
  highest_bytes: number | null;
}

/** The jobs that alerts come from: the newest `JOBS_LISTED`. */
export interface Watched {
  jobs: number;
  imported: number;
  not_judged: string[];
  growing: string[];
}
