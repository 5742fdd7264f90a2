// The responses of `/api/v1`. docs/json.md describes their fields.
//
// Generated from the structs in answers/: `MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript` writes this file.
// (Over 400 lines: a list of fields.)

import type { ClassShare, Completeness, Frame, Job, NotJudged, RankReplays, Severity, Time } from './jobs';

/** How requests were aligned, counted in the larger recording. */
export interface Aligned {
  requests: number;
  constant: number;
  linear: number;
  quadratic: number;
  other: number;
  unmatched: number;
  unmatched_bytes: number;
}

/** Live memory at a device's peak, divided. */
export interface Anatomy {
  schema: number;
  job: Job;
  completeness: Completeness;
  rank: number;
  process: string;
  device: number;
  at: string;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number;
  classes: ClassShare[];
  modules: ModuleMemory[];
  parts: Part[];
  modules_left_out: number;
  parts_left_out: number;
  left_out_bytes: number;
}

/** Live memory that was allocated in one epoch. */
export interface Birth {
  epoch: number;
  live_bytes: number;
  live_blocks: number;
}

/** A live block. */
export interface Block {
  address: number;
  bytes: number;
  requested_bytes: number;
  class: string;
  birth_epoch: number;
  birth_step: number;
  birth_phase: string | null;
  site: Frame | null;
  owner: string | null;
}

/** A stretch of an allocator's life. */
export interface Blocks {
  schema: number;
  job: Job;
  completeness: Completeness;
  rank: number;
  process: string;
  device: number;
  exact: boolean;
  at_event: number;
  first_event: number;
  last_event: number;
  stored_from_event: number;
  stored_to_event: number;
  course: Course;
  segments: Segment[];
  blocks: Columns;
  blocks_left_out: number;
  classes: string[];
  frames: Frame[];
  stacks: number[][];
  sites: (number | null)[];
  owners: (string | null)[];
  failures: Failure[];
  rules: Rules;
}

/** What a call stands for. */
export type CallKind = 'all' | 'frame' | 'library' | 'owner' | 'no_stack' | 'smaller';

/** The peak with activation checkpointing. */
export interface Checkpoint {
  modules: string;
  calls: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  saves_allocated_bytes: number;
  saves_reserved_bytes: number;
  repeated_share: number;
}

/** The classes of a device's live memory over time. */
export interface Classes {
  schema: number;
  job: Job;
  completeness: Completeness;
  rank: number;
  process: string;
  device: number;
  classes: string[];
  points: ClassesPoint[];
  points_left_out: number;
  slots?: ClassesSlot[];
  looked_until: string | null;
}

/** A boundary. */
export interface ClassesPoint {
  at: string;
  boundary: string;
  epoch: number;
  step: number;
  exact: boolean;
  bytes: number[];
}

/** A stretch of time. */
export interface ClassesSlot {
  from: Time;
  until: Time;
  bytes: number[];
}

/** Blocks, by columns. */
export interface Columns {
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
}

/** What a comparison comes to: the first that applies. */
export type Conclusion = 'not_comparable' | 'new_finding' | 'higher' | 'lower' | 'other_growth' | 'other_parts' | 'same';

/** The time, and the allocated and reserved bytes, at regular numbers of events. */
export interface Course {
  first_at: string;
  event: number[];
  elapsed_ns: number[];
  epoch: number[];
  step: number[];
  allocated_bytes: number[];
  reserved_bytes: number[];
}

/** What differs between two runs. */
export interface Diff {
  schema: number;
  before: string;
  after: string;
  conclusion: Conclusion;
  sentence: string;
  ignored_bytes: number;
  figures: FigureChange[];
  sites: SiteChange[];
  growth: GrowthChange[];
  classes: NameChange[];
  modules: NameChange[];
  settings: SettingChange[];
  new_findings: KnownFinding[];
  gone_findings: KnownFinding[];
  not_judged_findings: UnjudgedFinding[];
  notes: string[];
}

/** A request that failed. */
export interface Failure {
  event: number;
  bytes: number;
  stream: string;
}

/** A figure in both runs: its highest value among all devices. */
export interface FigureChange {
  figure: string;
  before: number | null;
  after: number | null;
}

/** The forecast for other sizes. */
export interface Fit {
  schema: number;
  recordings: Recording[];
  aligned: Aligned | null;
  scaled: Scaled | null;
  device_memory_bytes: number | null;
  at: FitSize[];
  largest_that_fits: number | null;
  without: Without | null;
  checkpoint: Checkpoint | null;
  growing: Growing[];
  peak: Peak | null;
  under: Under | null;
  not_looked_at: string[];
}

/** Blocks of one site with the same class. */
export interface FitHolder {
  site: Frame | null;
  class: string;
  blocks: number;
  bytes: number;
}

/** A recording's replay without a change. */
export interface FitReplayed {
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  failed_requests: number;
  failed_bytes: number;
  began_with_bytes: number;
}

/** One size. */
export interface FitSize {
  size: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  low: number;
  high: number;
  fits: boolean | null;
}

/** The graph. */
export interface Flame {
  schema: number;
  job: Job;
  completeness: Completeness;
  rank: number;
  process: string;
  device: number;
  at: FlameMoment;
  from: FlameMoment | null;
  unchanged_bytes: number;
  calls: FlameCall[];
  calls_left_out: number;
}

/** A call. */
export interface FlameCall {
  depth: number;
  kind: CallKind;
  owner: string | null;
  frames: Frame[];
  own: boolean;
  bytes: number;
  grown_bytes: number;
  shrunk_bytes: number;
  live_blocks: number;
  class: string | null;
}

/** A moment of a rank. */
export interface FlameMoment {
  at: Time;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
}

/** A step of the floor: it holds from the previous step's end to its own. */
export interface FloorStep {
  until: Time;
  allocated_bytes: number;
}

/** Sites that an answer omits because it would become too large. */
export interface Further {
  sites: number;
  live_bytes: number;
  live_blocks: number;
}

/** Memory that is removed. */
export interface Gone {
  peak_reserved_bytes: number;
  site: Frame | null;
  class: string;
  blocks: number;
  bytes: number;
}

/** Memory that grows in a recording. */
export interface Growing {
  job: string;
  sentence: string;
  steps: number;
  is_leak: boolean;
  is_bounded: boolean;
  advice: string | null;
}

/** Growth of one site. */
export interface GrowthChange {
  site: Frame | null;
  before_bytes_per_epoch: number;
  after_bytes_per_epoch: number;
}

/** Ranks side by side over their epochs. */
export interface Heat {
  schema: number;
  job: Job;
  completeness: Completeness;
  epochs: number[];
  median_bytes: (number | null)[];
  limit_bytes: (number | null)[];
  ranks: HeatRow[];
}

/** A rank's device. */
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

/** Memory of a class or a module. */
export interface Held {
  name: string | null;
  blocks: number;
  bytes: number;
}

/** What identifies a finding in another run. */
export interface KnownFinding {
  kind: string;
  site: Frame | null;
  subject: string | null;
  title: string;
  suspected: boolean;
  severity: Severity;
  bytes_per_epoch: number | null;
  bytes_per_step: number | null;
  bytes_per_minute: number | null;
  holders: KnownHolder[];
}

/** An object that holds the blocks of a finding. */
export interface KnownHolder {
  type: string;
  name: string;
  owner: string | null;
}

/** The ledgers of a job. */
export interface Ledger {
  schema: number;
  job: Job;
  completeness: Completeness;
  ranks: Listed[];
  not_judged: NotJudged[];
}

/** Omitted entries. */
export interface LeftOut {
  count: number;
  bytes: number;
}

/** A rank's ledger and its blocks. */
export interface Listed {
  blocks: Block[] | null;
  rank: number;
  process: string;
  device: number;
  at: Time;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number;
  classes: ClassShare[];
  cached_bytes: number;
  nccl_bytes: number | null;
  context_bytes: number | null;
  others_bytes: number | null;
  unmeasured_bytes: number | null;
  unexplained_bytes: number | null;
  unexplained_share: number | null;
  device_used_bytes: number | null;
  device_total_bytes: number | null;
  measured_at: Time | null;
  blocks_left_out: number;
  owners: Owned[];
  owners_left_out: number;
  pools: Pool[];
}

/** A mark. */
export interface Mark {
  at: Time;
  kind: string;
  value: number | null;
  name: string | null;
}

/** One measure by itself. */
export interface Measure {
  kind: string;
  what: string;
  peak_reserved_bytes: number;
  saves_bytes: number;
  is_enough: boolean;
  arithmetic: string;
}

/** Memory that was allocated in one module. */
export interface ModuleMemory {
  module: string | null;
  live_bytes: number;
  live_blocks: number;
}

/** Live memory of one class or module at the peaks. */
export interface NameChange {
  name: string | null;
  before_bytes: number;
  after_bytes: number;
}

/** Memory of one name. */
export interface Owned {
  owner: string;
  live_bytes: number;
  live_blocks: number;
  share: number;
}

/** Memory that was allocated for one purpose, in one module, at one site. */
export interface Part {
  class: string;
  module: string | null;
  site: Frame | null;
  live_bytes: number;
  live_blocks: number;
}

/** Live memory at the moment with most allocated bytes. */
export interface Peak {
  allocated_bytes: number;
  peak_reserved_bytes: number;
  failed_bytes: number;
  classes: Held[];
  modules: Held[];
  sites: FitHolder[];
  modules_left_out: LeftOut;
  sites_left_out: LeftOut;
}

/** The levels within one stretch of time. */
export interface Point {
  first_at: Time;
  last_at: Time;
  epoch: number;
  step: number;
  allocated_bytes: number;
  reserved_bytes: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  min_allocated_bytes: number;
}

/** A private pool of the allocator: a CUDA graph's, or a `MemPool`. */
export interface Pool {
  pool: string;
  reserved_bytes: number;
  allocated_bytes: number;
  owner: string | null;
}

/** The live memory of one rank. */
export interface RankSites {
  rank: number;
  process: string;
  device: number;
  at: Time;
  epoch: number;
  step: number;
  exact: boolean;
  allocated_bytes: number | null;
  reserved_bytes: number | null;
  sites: Site[];
  further: Further | null;
  merged: boolean;
}

/** The timeline of one rank. */
export interface RankTimeline {
  rank: number;
  process: string;
  device: number;
  points: Point[];
  marks: Mark[];
  floor?: FloorStep[];
}

/** A recording and its size. */
export interface Recording {
  job: string;
  attempt: number;
  size: number | null;
  rank: number;
  process: string;
  device: number;
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  exact: boolean;
  replayed: FitReplayed;
}

/** The rules that a request follows. */
export interface Rules {
  round_bytes: number;
  small_bytes_max: number;
}

/** How the requests of one recording are assumed to scale. */
export interface Scaled {
  requests: number;
  fixed: number;
  fixed_bytes: number;
  proportional: number;
  proportional_bytes: number;
  doubtful: number;
  doubtful_bytes: number;
}

/** A segment, or a mapped range of an expandable one. */
export interface Segment {
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

/** A setting, a version, or the device. */
export interface SettingChange {
  name: string;
  before: string | null;
  after: string | null;
}

/** Live memory of one stack. */
export interface Site {
  live_bytes: number;
  live_blocks: number;
  class: string | null;
  site: Frame | null;
  owner: string | null;
  stack: Frame[];
  births: Birth[];
}

/** Live memory of one site at the peaks. */
export interface SiteChange {
  site: Frame | null;
  line_before: number | null;
  class: string;
  before_bytes: number;
  before_bytes_max: number | null;
  after_bytes: number;
  after_bytes_max: number | null;
  before_blocks: number;
  after_blocks: number;
}

/** Live memory by allocation site. */
export interface Sites {
  schema: number;
  job: Job;
  completeness: Completeness;
  ranks: RankSites[];
}

/** Blocks, by columns. */
export interface StepBlocks {
  bytes: number[];
  requested_bytes: number[];
  class: number[];
  stack: number[];
  free_stack: number[];
  birth_epoch: number[];
  birth_step: number[];
  from_event: (number | null)[];
  to_event: (number | null)[];
}

/** Levels after an event. */
export interface StepLevel {
  event: number;
  allocated_bytes: number;
  reserved_bytes: number;
}

/** The memory of a step; see the module. */
export interface StepMemory {
  schema: number;
  job: Job;
  completeness: Completeness;
  rank: number;
  process: string;
  device: number;
  exact: boolean;
  of: StepSpan;
  previous: StepName | null;
  next: StepName | null;
  first_event: number;
  last_event: number;
  first_at: Time;
  duration_ns: number;
  start: StepLevel;
  peak: StepLevel;
  end: StepLevel;
  events_per_point: number;
  points: StepPoints;
  blocks: StepBlocks;
  rest_blocks: number;
  phases: StepPhase[];
  failures: Failure[];
  classes: string[];
  frames: Frame[];
  stacks: number[][];
  sites: (number | null)[];
  owners: (string | null)[];
}

/** A step by its numbers. */
export interface StepName {
  epoch: number;
  step: number;
}

/** A phase within a step. */
export interface StepPhase {
  phase: string;
  first_event: number;
  last_event: number;
}

/** The course, by columns. */
export interface StepPoints {
  event: number[];
  elapsed_ns: number[];
  allocated_bytes: number[];
  reserved_bytes: number[];
  rest_bytes: number[];
}

/** The stretch of events that the answer is about. */
export interface StepSpan {
  kind: string;
  epoch: number;
  step: number;
  ended: boolean;
  first_event: number;
  last_event: number;
}

/** The head of a tile. */
export interface TileHead {
  schema: number;
  session: string;
  rank: number;
  process: string;
  device: number;
  level: number;
  index: number;
  first_at: string;
  slots: number;
  first_slot: number;
  count: number;
  detail: string;
  coarse_chunks: number;
  is_final: boolean;
  exact: boolean;
  columns: string[];
  marks: Mark[];
  marks_left_out: number;
}

/** Memory over time. */
export interface Timeline {
  schema: number;
  job: Job;
  completeness: Completeness;
  ranks: RankTimeline[];
  points: number;
}

/** Measures that bring a training below a number of bytes. */
export interface Under {
  limit_bytes: number;
  peak_reserved_bytes: number;
  excess_bytes: number;
  must_go: Gone[];
  is_enough: boolean;
  first: string | null;
  measures: Measure[];
}

/** A finding of the first run that the second one was not judged for. */
export interface UnjudgedFinding {
  reason: string;
  kind: string;
  site: Frame | null;
  subject: string | null;
  title: string;
  suspected: boolean;
  severity: Severity;
  bytes_per_epoch: number | null;
  bytes_per_step: number | null;
  bytes_per_minute: number | null;
  holders: KnownHolder[];
}

/** The memory under other settings. */
export interface WhatIf {
  schema: number;
  job: Job;
  completeness: Completeness;
  ranks: RankReplays[];
  ranks_left_out: number;
  not_looked_at: string[];
}

/** The peak if the blocks of a site did not exist. */
export interface Without {
  site: string;
  places: Frame[];
  requests: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number;
  saves_allocated_bytes: number;
  saves_reserved_bytes: number;
}
