// The responses of `/api/v1`, as docs/json.md describes them.
//
// Generated from the structs in answers/: `MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript` writes this file.
// (Over 400 lines: a list of fields.)

/** Advice about one device. */
export interface Advice {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** What to set, what speaks against it, or that nothing helps and what pins the memory. */
  says: string[];
  /** Why no setting was replayed; null where some were. */
  not_replayed: string | null;
  /** The replays. */
  device: RankReplays | null;
}

/** One alert. */
export interface Alert {
  /** Its id. */
  id: Id;
  /** The rule by which it was made. */
  rule: string;
  /** Its state. */
  state: Phase;
  /** The job. */
  job: string;
  /** The run in which it was last seen; null where the daemon knows no runs. */
  run: number | null;
  /** The attempt in which it was last seen. */
  attempt: number;
  /** Labels. */
  labels: Record<string, string>;
  /** Annotations of the rule. */
  annotations: Record<string, string>;
  /** Since when it is seen. */
  since: Time;
  /** When it fired. */
  fired_at: Time | null;
  /** When it resolved. */
  resolved_at: Time | null;
  /** When it was last seen. */
  seen_at: Time;
  /** The silence that keeps it quiet. */
  silenced_by: string | null;
  /** What each receiver knows. */
  receivers: Receiver[];
  /** The tenant whose job it is about. */
  tenant: string;
  /** The finding's id. */
  finding: Id;
  /** The finding's kind. */
  kind: string;
  /** How bad it is. */
  severity: Severity;
  /** 0..1. */
  confidence: number;
  /** The first ranks. */
  ranks: number[];
  /** How many ranks. */
  rank_count: number;
  /** Whether these are all of the job's. */
  all_ranks: boolean;
  /** The sentence. */
  title: string;
  /** Why. */
  explanation: string;
  /** What to change. */
  advice: string;
}

/** Alerts, firing ones first. */
export interface Alerts {
  /** See `SCHEMA`. */
  schema: number;
  /** The alerts. */
  alerts: Alert[];
  /** Alerts that were not made because there were too many, since the daemon started. */
  refused: number;
  /** Notifications given up, since the daemon started. */
  given_up: number;
  /** The jobs that these alerts, or their absence, are about; null until the jobs are asked for, too. */
  jobs: Watched | null;
}

/** How requests were aligned, counted in the larger recording. */
export interface Aligned {
  /** Requests for memory. */
  requests: number;
  /** The same bytes in both. */
  constant: number;
  /** In proportion to the size. */
  linear: number;
  /** In proportion to its square. */
  quadratic: number;
  /** Changed otherwise. */
  other: number;
  /** Only in the larger recording. */
  unmatched: number;
  /** Bytes of these. */
  unmatched_bytes: number;
}

/** Live memory at a device's peak, divided. */
export interface Anatomy {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** The moment. */
  at: string;
  /** Epoch of the moment. */
  epoch: number;
  /** Step of the moment. */
  step: number;
  /** Whether the figures are exact. */
  exact: boolean;
  /** Handed out by the allocator. */
  allocated_bytes: number;
  /** Allocated bytes by class; empty classes are omitted. */
  classes: ClassShare[];
  /** By module, most first. */
  modules: ModuleMemory[];
  /** By class, module and site, most first. */
  parts: Part[];
  /** Modules that had no room in the answer. */
  modules_left_out: number;
  /** Parts that had no room in the answer. */
  parts_left_out: number;
  /** Their bytes. */
  left_out_bytes: number;
}

/** A point of a recording. */
export interface At {
  /** Index of the event on its device. */
  event: number;
  /** The step, where steps are marked. */
  step: number | null;
}

/** Live memory that was allocated in one epoch. */
export interface Birth {
  /** The epoch. */
  epoch: number;
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
}

/** A live block. */
export interface Block {
  /** Device address. */
  address: number;
  /** Size as handed out. */
  bytes: number;
  /** Size as asked for. */
  requested_bytes: number;
  /** Its class. */
  class: string;
  /** Epoch of its birth. */
  birth_epoch: number;
  /** Step of its birth. */
  birth_step: number;
  /** Phase of its birth; null when none was marked. */
  birth_phase: string | null;
  /** The innermost frame of the user's own code; null when no stack was recorded. */
  site: Frame | null;
  /** Whose memory it is, as the process named it; null when it did not. */
  owner: string | null;
}

/** A stretch of an allocator's life. */
export interface Blocks {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Whether the state is exact. */
  exact: boolean;
  /** The moment that was asked for: behind so many events. */
  at_event: number;
  /** The stretch begins behind so many events. */
  first_event: number;
  /** And ends behind so many. */
  last_event: number;
  /** What is stored begins behind so many events. */
  stored_from_event: number;
  /** And ends behind so many. */
  stored_to_event: number;
  /** The course of the stretch. */
  course: Course;
  /** Segments, and mapped ranges of expandable ones. */
  segments: Segment[];
  /** Blocks. */
  blocks: Columns;
  /** Blocks that had no room: the smallest. */
  blocks_left_out: number;
  /** Names of classes. */
  classes: string[];
  /** Frames of stacks. */
  frames: Frame[];
  /** Stacks, innermost frame first; the first stack is none. */
  stacks: number[][];
  /** Of each stack the innermost frame of the user's own code. */
  sites: (number | null)[];
  /** Of each stack whose memory it is, as the process named it. */
  owners: (string | null)[];
  /** Requests that failed. */
  failures: Failure[];
  /** How requests are rounded and where they may lie. */
  rules: Rules;
}

/** Where epochs and steps come from. */
export interface Boundaries {
  /** `given` by marks, `found`, or `none`. */
  epochs: string;
  /** The same. */
  steps: string;
  /** Windows that were cut, of the device that has most. */
  windows: number;
  /** How they were found: `the loop at train.py:31`. */
  found_by: string | null;
}

/** What a call stands for. */
export type CallKind = 'all' | 'frame' | 'library' | 'owner' | 'no_stack' | 'smaller';

/** The peak with activation checkpointing. */
export interface Checkpoint {
  /** The modules, as they were asked for. */
  modules: string;
  /** Calls of them in the recording that keep something for the backward pass. */
  calls: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Of allocated bytes. */
  saves_allocated_bytes: number;
  /** Of reserved bytes. */
  saves_reserved_bytes: number;
  /** The share of the forward passes that is repeated, by the bytes that they ask for, 0 to 1. */
  repeated_share: number;
}

/** Bytes of a class. */
export interface Class {
  /** Its name. */
  class: string;
  /** Live bytes. */
  live_bytes: number;
}

/** Bytes of a class. */
export interface ClassShare {
  /** Its name. */
  class: string;
  /** Live bytes. */
  live_bytes: number;
  /** Of what is allocated. */
  share: number;
}

/** The classes of a device's live memory over time. */
export interface Classes {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Names of the classes, in the order of a point's bytes. */
  classes: string[];
  /** The boundaries, by time. */
  points: ClassesPoint[];
  /** Boundaries between them that had no room in the answer. */
  points_left_out: number;
  /**
   * Consecutive stretches of time, each with the classes of its highest moment; empty where there are too many
   * events.
   */
  slots?: ClassesSlot[];
  /** Up to when steps were looked at, where there were too many; null where all were. */
  looked_until: string | null;
}

/** A boundary. */
export interface ClassesPoint {
  /** When. */
  at: string;
  /** `step`, `epoch`, `window` or `end`. */
  boundary: string;
  /** Epoch that ended or is under way. */
  epoch: number;
  /** Step that ended or was the last one. */
  step: number;
  /** Whether the figures are exact. */
  exact: boolean;
  /** Live bytes of each class. */
  bytes: number[];
}

/** A stretch of time. */
export interface ClassesSlot {
  /** Its beginning. */
  from: Time;
  /** Its end. */
  until: Time;
  /** Allocated bytes of each class at its highest moment. */
  bytes: number[];
}

/** Blocks, by columns. */
export interface Columns {
  /** Device address. */
  address: number[];
  /** True size. */
  bytes: number[];
  /** As asked for. */
  requested_bytes: number[];
  /** Index into the stacks. */
  stack: number[];
  /** Index into the classes. */
  class: number[];
  /** Epoch of its birth. */
  birth_epoch: number[];
  /** Step of its birth. */
  birth_step: number[];
  /** Live behind so many events on; null if it was so before the stretch. */
  from_event: (number | null)[];
  /** Given back behind so many events, and not gone yet. */
  freed_event: (number | null)[];
  /** Gone behind so many events; null if it is not within the stretch. */
  to_event: (number | null)[];
}

/** How complete the data behind an answer is. */
export interface Completeness {
  /** Nothing is missing. */
  exact: boolean;
  /** Events in the store. */
  events_stored: number;
  /** Events that agents dropped and counted. */
  events_dropped: number;
  /** Items that never arrived. */
  gaps: number;
  /** Events removed by retention. */
  events_expired: number;
  /** Stored items that were found damaged when they were read: the answer is given without them. */
  items_damaged: number;
}

/** The time, and the allocated and reserved bytes, at regular numbers of events. */
export interface Course {
  /** The time of the first point. */
  first_at: string;
  /** Of each point: behind so many events. */
  event: number[];
  /** Nanoseconds since the first point. */
  elapsed_ns: number[];
  /** The epoch under way. */
  epoch: number[];
  /** The step under way, or the last one before. */
  step: number[];
  /** Bytes. */
  allocated_bytes: number[];
  /** Bytes. */
  reserved_bytes: number[];
}

/** The note. */
export interface Diagnosis {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** `critical`, `warning`, `info`; where nothing was found `none`, or `inconclusive` where that means nothing. */
  severity: Severity | 'none' | 'inconclusive';
  /** One sentence. */
  summary: string;
  /** The six questions, in their order. */
  questions: Question[];
  /** The figures of the rank that the note is about; null when nothing was recorded. */
  usage: Usage | null;
  /** What is wrong, the worst first; the note is about the first. */
  findings: Finding[];
  /** What the job's memory did; null from a daemon that does not say. */
  verdict: Verdict | null;
  /** What allocator settings would do, where a finding depends on how memory is packed; null elsewhere. */
  replay: Advice | null;
  /** What was looked at. */
  judged: Judged;
  /** What was not, the gaps that decide first. */
  not_judged: NotJudged[];
}

/** A request that fails. */
export interface Ended {
  /** Index of the event on its device. */
  event: number;
  /** The step, where steps are marked. */
  step: number | null;
  /** What was asked. */
  requested_bytes: number;
  /** By whom. */
  site: Frame | null;
}

/** The end of one epoch on one rank. */
export interface EpochEnd {
  /** Which one. */
  epoch: number;
  /** Allocated bytes. */
  allocated_bytes: number | null;
  /** Reserved bytes. */
  reserved_bytes: number | null;
  /** Highest since the session began. */
  peak_allocated_bytes: number | null;
  /** Highest since the session began. */
  peak_reserved_bytes: number | null;
  /** Highest within the epoch. */
  epoch_peak_allocated_bytes: number | null;
  /** Highest within the epoch. */
  epoch_peak_reserved_bytes: number | null;
  /** Active bytes. */
  active_bytes: number | null;
  /** Requested bytes. */
  requested_bytes: number | null;
  /** Free bytes in segments that are partly in use. */
  inactive_split_bytes: number | null;
  /** The largest free block. */
  largest_free_bytes: number | null;
  /** Blocks handed out. */
  allocated_blocks: number | null;
  /** Segments held. */
  segments: number | null;
  /** The last step. */
  step: number;
  /** When. */
  at: Time;
  /** Whether the figures are exact. */
  exact: boolean;
}

/** One figure or fact; null if a figure is not a number. */
export type Evidence = number | null | string | number[];

/** One failed request. */
export interface Failed {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** When. */
  at: Time;
  /** Epoch under way. */
  epoch: number | null;
  /** Step under way. */
  step: number | null;
  /** `capacity`, `fragmentation`, `neighbour` or `outside_allocator`. */
  cause: string;
  /** Who asked; null when no stack was recorded. */
  site: FindingSite | null;
  /** The request, rounded. */
  asked_bytes: number;
  /** Held from the driver when it came. */
  reserved_bytes: number;
  /** Of these in use. */
  active_bytes: number;
  /** Of these handed out. */
  allocated_bytes: number;
  /** Of these free. */
  free_in_cache_bytes: number;
  /** The largest free block that could have served it. */
  largest_usable_bytes: number;
  /** Holes beside live blocks. */
  holes: number;
  /** Given back to the driver in the last attempt. */
  flushed_bytes: number;
  /** Still in the cache behind it. */
  stranded_bytes: number;
  /** Missing, were all free memory one piece. */
  missing_bytes: number;
  /** Free on the device. */
  device_free_bytes: number;
  /** The device's size. */
  device_total_bytes: number | null;
  /** Lower bound of the process's memory limit. */
  limit_at_least_bytes: number | null;
  /** And less than this. */
  limit_below_bytes: number | null;
  /** Other processes' memory on the device. */
  others_bytes: number | null;
  /** This process's memory outside the allocator. */
  outside_bytes: number | null;
  /** Whether expandable segments would have served it. */
  expandable_segments_would_serve: boolean;
  /** What was live, by class. */
  classes: Class[];
  /** What was live, by site, most first. */
  sites: Live[];
  /** Blocks that strand most, first. */
  held_by: StrandingHolder[];
  /** The other ranks. */
  peers: Peer[];
  /** Whether the figures are exact. */
  exact: boolean;
}

/** A request that failed. */
export interface Failure {
  /** Its event. */
  event: number;
  /** The rounded request. */
  bytes: number;
  /** On this stream, in hexadecimal. */
  stream: string;
}

/** A problem: its place, its ranks, its severity, and what to do. */
export interface Finding {
  /** Stays the same while the finding grows or spreads. */
  id: string;
  /** What kind it is, by name. */
  kind: string;
  /** `info`, `warning` or `critical`. */
  severity: Severity;
  /** An order among findings of one severity, 0..1; no probability. */
  confidence: number | null;
  /** Whether it may still turn out harmless. */
  suspected: boolean;
  /** Whether what grew filled the device: a request failed because of it. */
  filled_device: boolean;
  /** Ranks concerned, ascending. */
  ranks: number[];
  /** Whether these are all ranks (and more than one). */
  all_ranks: boolean;
  /** When it was first seen. */
  first_seen: FirstSeen;
  /** Growth an epoch, of one rank. */
  bytes_per_epoch: number | null;
  /** Growth a step, of one rank. */
  bytes_per_step: number | null;
  /** What lives of it now, on the rank that holds most. */
  live_bytes: number | null;
  /** Seconds until the device is full, at this slope. */
  time_to_oom_seconds: number | null;
  /** The innermost frame of the user's own code, with the stack behind it; null when no stack was recorded. */
  site: FindingSite | null;
  /** One sentence. */
  title: string;
  /** Why memctl says so. */
  explanation: string;
  /** What to change. */
  advice: string;
  /** The figures and facts behind it. */
  evidence: Record<string, Evidence>;
  /** Blocks of it that live, on the rank that holds most. */
  live_blocks: number | null;
  /** Epochs until the device is full, at this slope. */
  epochs_to_oom: number | null;
  /** Lower end of the slope's interval of 90 % confidence. */
  bytes_per_epoch_low: number | null;
  /** Upper end. */
  bytes_per_epoch_high: number | null;
  /** Lower end of the slope's interval of 90 % confidence. */
  bytes_per_step_low: number | null;
  /** Upper end. */
  bytes_per_step_high: number | null;
  /** Distinguishes two findings of one kind without a site: `rank 3`. */
  subject: string | null;
  /** What the code does, as far as it is known: `tensors_kept`, `hooks_pile_up`. */
  pattern: string | null;
  /** Processes concerned, by name. */
  processes: string[];
  /** Growth a minute of wall-clock time, of one rank. */
  bytes_per_minute: number | null;
  /** Lower end of the slope's interval of 90 % confidence. */
  bytes_per_minute_low: number | null;
  /** Upper end. */
  bytes_per_minute_high: number | null;
  /** Lines of the site's function that allocated it, ascending, where they are several. */
  lines: number[];
  /** What holds its blocks; null where no process was asked. */
  holders: FindingHolders | null;
}

/** The known holders of a finding's blocks. */
export interface FindingHolders {
  /** All of it in words. */
  sentence: string;
  /** The rank that was asked. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** When it answered. */
  asked_at: Time;
  /** The epoch in which it answered. */
  epoch: number | null;
  /** Whether the daemon asked by itself. */
  unasked: boolean;
  /** Why there is no answer; null where there is one. */
  failure: string | null;
  /** Live blocks of the site. */
  live_blocks: number | null;
  /** Their bytes. */
  live_bytes: number | null;
  /** Those of them whose holders were searched: the oldest ones without what was made once, at most 256. */
  asked_blocks: number | null;
  /** Of these, how many a holder was found for. */
  found_blocks: number | null;
  /** Holders, most blocks first. */
  holders: GrowingHolder[];
  /** Objects of the interpreter that were looked at. */
  objects: number | null;
  /** How long the process stood still for it. */
  took_seconds: number | null;
  /** How long it might have. */
  budget_seconds: number;
  /** Slices of the search. */
  slices: number | null;
  /** The longest of them. */
  longest_seconds: number | null;
  /** Whether all that can be looked at was. */
  complete: boolean | null;
  /** What was not looked at, in sentences. */
  not_looked_at: string[];
}

/** Where the memory of a finding was allocated. */
export interface FindingSite {
  /** The whole stack, innermost first. */
  stack: Frame[];
  /** Function. */
  function: string;
  /** File, as recorded. */
  file: string;
  /** Line; null when unknown. */
  line: number | null;
}

/** When a finding was first seen, as far as it is known. */
export interface FirstSeen {
  /** Epoch. */
  epoch: number | null;
  /** Step. */
  step: number | null;
  /** Time. */
  at: Time | null;
  /** The kind of boundary that showed it: `epoch`, `step` or `window`. */
  boundary: string | null;
}

/** The forecast for other sizes. */
export interface Fit {
  /** See `SCHEMA`. */
  schema: number;
  /** The recordings, the smaller size first. */
  recordings: Recording[];
  /** How the requests of two were aligned. */
  aligned: Aligned | null;
  /** How the requests of one were taken to scale, where other sizes were asked for. */
  scaled: Scaled | null;
  /** What the process may reserve, where that was asked. */
  device_memory_bytes: number | null;
  /** By size, as asked. */
  at: FitSize[];
  /** The largest size that fits; null where none does, or where no memory was named. */
  largest_that_fits: number | null;
  /** Without a site, where that was asked. */
  without: Without | null;
  /** With activation checkpointing, where that was asked. */
  checkpoint: Checkpoint | null;
  /** The recordings of which memory grows. A page of sizes, which is not about a run, has none. */
  growing: Growing[];
  /** The peak, explained, where a number to get under was named. */
  peak: Peak | null;
  /** What gets under it. */
  under: Under | null;
  /** What no figure covers. */
  not_looked_at: string[];
}

/** Blocks of one site with the same class. */
export interface FitHolder {
  /** Who allocated them; null when no stack was recorded, as in the backward pass of a snapshot. */
  site: Frame | null;
  /** Their class. */
  class: string;
  /** Blocks. */
  blocks: number;
  /** Their bytes. */
  bytes: number;
}

/** A recording's replay without a change. */
export interface FitReplayed {
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Requests that failed when they were recorded. The replay counts them as if they had been served. */
  failed_requests: number;
  /** Bytes of the largest of these. */
  failed_bytes: number;
  /** Bytes in use when the recording began, which the replay asks for first. */
  began_with_bytes: number;
}

/** One size. */
export interface FitSize {
  /** The number. */
  size: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Lowest likely peak of reserved bytes. */
  low: number;
  /** Highest likely peak of reserved bytes. */
  high: number;
  /** Whether every request is served; null where no memory was named. */
  fits: boolean | null;
}

/** The graph. */
export interface Flame {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** The moment, or the later one of two. */
  at: FlameMoment;
  /** The earlier one; null where one moment is shown. */
  from: FlameMoment | null;
  /** Live in stacks that did not change; 0 where one moment is shown. */
  unchanged_bytes: number;
  /** Every call behind its caller; the first one is everything. */
  calls: FlameCall[];
  /** Calls that had no room: the narrowest. */
  calls_left_out: number;
}

/** A call. */
export interface FlameCall {
  /** Callers above it; 0 for everything. */
  depth: number;
  /** What it stands for. */
  kind: CallKind;
  /** Of an `owner`, whose memory it is, as the process named it; null of all others. */
  owner: string | null;
  /** Its frames, outermost first: one of a `frame`, those that are folded of a `library`. */
  frames: Frame[];
  /** Whether it is the user's own code. */
  own: boolean;
  /** How wide it is: bytes that live, or bytes that changed in either direction. */
  bytes: number;
  /** Of these, bytes that came. */
  grown_bytes: number;
  /** Of these, bytes that went. */
  shrunk_bytes: number;
  /** Blocks that live, at the later moment. */
  live_blocks: number;
  /** The class that has most of its bytes at the peak; null where no class is known. */
  class: string | null;
}

/** A moment of a rank. */
export interface FlameMoment {
  /** The time. */
  at: Time;
  /** The epoch under way or just ended. */
  epoch: number;
  /** The step under way or just ended. */
  step: number;
  /** Whether the figures are exact. */
  exact: boolean;
  /** At that moment. */
  allocated_bytes: number | null;
  /** At that moment. */
  reserved_bytes: number | null;
}

/** A step of the floor: it holds from the previous step's end to its own. */
export interface FloorStep {
  /** Its end; that of the last step is the last boundary. */
  until: Time;
  /** The lowest level from anywhere within it up to the last boundary. */
  allocated_bytes: number;
}

/** One line of a call stack. */
export interface Frame {
  /** Function. */
  function: string;
  /** File, as recorded. */
  file: string;
  /** Line; null when unknown. */
  line: number | null;
}

/** Sites that an answer omits because it would become too large. */
export interface Further {
  /** How many. */
  sites: number;
  /** Live bytes of all. */
  live_bytes: number;
  /** Live blocks of all. */
  live_blocks: number;
}

/** How much was not judged. */
export type Gap = 'part' | 'whole';

/** Memory that is removed. */
export interface Gone {
  /** Highest reserved bytes without it and those before it. */
  peak_reserved_bytes: number;
  /** Who allocated them; null when no stack was recorded, as in the backward pass of a snapshot. */
  site: Frame | null;
  /** Their class. */
  class: string;
  /** Blocks. */
  blocks: number;
  /** Their bytes. */
  bytes: number;
}

/** Memory that grows in a recording. */
export interface Growing {
  /** The job's name. */
  job: string;
  /** The job's verdict, or of a job that ran out of memory what grew before. */
  sentence: string;
  /** Steps that were recorded: what the figures are for. 0 where none is marked. */
  steps: number;
  /** Whether its cause is known to be a leak. */
  is_leak: boolean;
  /** Whether memory fills something that is bounded. */
  is_bounded: boolean;
  /** What to change, where a finding says it. */
  advice: string | null;
}

/** A holder, and its growth since the first search of the process. */
export interface GrowingHolder {
  /** Its tensors at an earlier answer; null where they were not counted in two epochs. */
  tensors_before: number | null;
  /** The epoch of that answer. */
  since_epoch: number | null;
  /** How long it has become since an earlier answer; null where none measured it. */
  pace: Pace | null;
  /** `list`, `dict`, `attribute`, `closure`, `hook`, … */
  kind: string;
  /** One sentence. */
  sentence: string;
  /** From the root to the tensor, one step each. */
  chain: string[];
  /** Of the blocks that were asked about, how many it holds. */
  blocks: number;
  /** Their bytes. */
  bytes: number;
  /** How many tensors the innermost container holds; null where there is none. */
  tensors: number | null;
  /** What it is: container, cache, cycle, frame, thread, module, graph, cpp, variable, object, or unknown. */
  holder: string;
  /** Its type: `list`, `collections.deque`, `functools.lru_cache`, … */
  type: string;
  /** The variable or attribute; null where it has none. */
  name: string | null;
  /** The module, class or function whose that is. */
  owner: string | null;
  /** Items of the container; null where there is none. */
  length: number | null;
  /** unbounded, bounded, or unknown. */
  bound: string;
  /** Items that it may have, where that is known. */
  limit: number | null;
  /** Of a thread: which, and where it is. */
  thread: string | null;
  /** How many threads hold the same. */
  threads: number;
  /** Of a cycle: whether the garbage collector is on, off, or as good as never runs (rare). */
  collector: string | null;
  /** What makes C++ hold it: create_graph or autocast_cache; null where that is not known. */
  pattern: string | null;
}

/** A site that grew. */
export interface Growth {
  /** The innermost frame of the user's own code; null when no stack was recorded. */
  site: Frame | null;
  /** The stack that grew most there, innermost first. */
  stack: Frame[];
  /** By rank. */
  ranks: RankGrowth[];
}

/** Ranks side by side over their epochs. */
export interface Heat {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The epochs, in their order. */
  epochs: number[];
  /** The ranks' median at each epoch's end; null where too few ranks ended it. */
  median_bytes: (number | null)[];
  /** A rank that is further above the median than this is odd; null where too few ranks ended the epoch. */
  limit_bytes: (number | null)[];
  /** Odd ranks first: those that failed, then those that left the others, the earliest first. */
  ranks: HeatRow[];
}

/** A rank's device. */
export interface HeatRow {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Where it runs. */
  host: string | null;
  /** How it ended, when it did not end well. */
  failure: string | null;
  /** Figures by which it stands out among the ranks. */
  stands_out: string[];
  /**
   * The epoch from whose end on it is further above the median than the others explain, up to its last one; null
   * where it never was, or came back.
   */
  diverges_at: number | null;
  /** Allocated at each epoch's end. */
  allocated_bytes: (number | null)[];
}

/** Memory of a class or a module. */
export interface Held {
  /** The class or the module; null for blocks of no module. */
  name: string | null;
  /** Blocks. */
  blocks: number;
  /** Their bytes. */
  bytes: number;
}

/** An id, which is 16 hexadecimal digits in an answer. */
export type Id = string;

/** A job. */
export interface Job {
  /** What it is asked for by: its name, and behind `#` its run where the name has several. */
  id: string;
  /** Its name, which its runs share. */
  name: string;
  /** The number of the run; null where the daemon knows no runs. */
  run: number | null;
  /** `running`, `finished`, `failed` or `lost`. */
  state: JobState;
  /** When it began. */
  started_at: Time;
  /** When it was started, or imported. */
  arrived_at: Time;
  /** When it ended. */
  ended_at: Time | null;
  /** Ranks it should have. */
  world_size: number | null;
  /** Which attempt this is. */
  attempt: number;
  /** Labels. */
  labels: Record<string, string>;
  /** Events in the store. */
  events: number;
  /** Bytes in the store. */
  stored_bytes: number;
  /** Ranks that are stored. */
  ranks: number;
  /** Processes that allocated. */
  processes: number;
  /** Sessions that a later one of the same place followed: not shown and not judged. */
  earlier_sessions: number;
  /** Attempts that are stored. */
  attempts: number;
  /** `live` or `import`. */
  source: string | null;
  /** The tenant that owns the job. */
  tenant: string;
  /** What judging it came to; null where it was not judged for this answer. */
  verdict: JobVerdict | null;
}

/** The state of a job, or of a process. */
export type JobState = 'running' | 'finished' | 'failed' | 'lost';

/** A job's verdict in brief. */
export interface JobVerdict extends Partial<Verdict> {
  /** Of the worst finding; null where nothing was found. */
  severity: Severity | null;
  /** Its kind. */
  finding: string | null;
  /** Its sentence. */
  title: string | null;
  /** Findings in all. */
  findings: number;
  /** Why no finding means nothing; null where it does mean something. */
  inconclusive: string | null;
}

/** Jobs, newest first. */
export interface Jobs {
  /** See `SCHEMA`. */
  schema: number;
  /** The jobs. */
  jobs: Job[];
}

/** What was analysed. */
export interface Judged {
  /** Processes. */
  processes: number;
  /** Ranks, ascending. */
  ranks: number[];
  /** Epoch ends of the device that has most. */
  epoch_ends: number;
  /** Steps of the device that has most. */
  steps: number;
  /** Windows of the device that has most. */
  windows: number;
  /** By kind of finding. */
  kinds: JudgedKind[];
}

/** A kind of finding that was judged. */
export interface JudgedKind {
  /** Its name. */
  kind: string;
  /** The boundaries it was judged over: `step`, `epoch`, `window`; empty for a kind that needs none. */
  boundaries: string[];
}

/** The caller over HTTP, as in `/api/v1/caller`. */
export interface Known {
  /** See `SCHEMA`. */
  schema: number;
  /** What the log calls the caller. */
  name: string;
  /** What it may do. */
  role: Role;
  /** Its tenant, `*` for all. */
  tenant: string;
  /** Whether it came with a token, and can sign out. */
  signed_in: boolean;
  /** The daemon's version. */
  version: string;
}

/** The ledgers of a job. */
export interface Ledger {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** By rank and device. */
  ranks: Listed[];
  /** What could not be determined, and why. */
  not_judged: NotJudged[];
}

/** Omitted entries. */
export interface LeftOut {
  /** How many. */
  count: number;
  /** Their bytes. */
  bytes: number;
}

/** A rank's ledger and its blocks. */
export interface Listed {
  /** Live blocks by address; null when they were not asked for. */
  blocks: Block[] | null;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** The moment. */
  at: Time;
  /** Epoch of the moment. */
  epoch: number;
  /** Step of the moment. */
  step: number;
  /** Whether the allocator's part is exact. */
  exact: boolean;
  /** Handed out by the allocator. */
  allocated_bytes: number;
  /** Allocated bytes by class; empty classes are omitted. */
  classes: ClassShare[];
  /** Reserved and not handed out. */
  cached_bytes: number;
  /** Of NCCL's communicators; null if NCCL did not report it; it is then part of `context_bytes`. */
  nccl_bytes: number | null;
  /** This process's, except the allocator and what NCCL reports: its context, kernels, libraries. */
  context_bytes: number | null;
  /** Of other processes. */
  others_bytes: number | null;
  /** In use on the device by what was not measured, its context or other processes: null where both were. */
  unmeasured_bytes: number | null;
  /**
   * Left over where everything was measured; below zero when the parts, measured at different moments, exceed the
   * whole.
   */
  unexplained_bytes: number | null;
  /** Of what is used. */
  unexplained_share: number | null;
  /** In use on the device, by all processes. */
  device_used_bytes: number | null;
  /** The device's size. */
  device_total_bytes: number | null;
  /** When the device was measured. */
  measured_at: Time | null;
  /** Live blocks that had no room in the answer, where they were asked for: the smallest. */
  blocks_left_out: number;
  /** Allocated memory that the process named, by name, most first; the rest of it has no name. */
  owners: Owned[];
  /** Names that had no room: those with least memory. */
  owners_left_out: number;
  /** Private pools, most reserved first. */
  pools: Pool[];
}

/** Live memory of one site. */
export interface Live {
  /** Who allocated it; null when no stack was recorded. */
  site: FindingSite | null;
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
  /** Live bytes at the end of the last step that ended. */
  before_bytes: number | null;
}

/** A mark. */
export interface Mark {
  /** When. */
  at: Time;
  /** What it says: `epoch_begin`, `step_end`, `note`, … */
  kind: string;
  /** The epoch or step, where it has one. */
  value: number | null;
  /** The phase's, region's or note's name, where it has one. */
  name: string | null;
}

/** One measure by itself. */
export interface Measure {
  /** `allocator_setting`, `checkpointing`, `smaller_size`, `optimizer_8_bit` or `optimizer_sharded`. */
  kind: string;
  /** What to do. */
  what: string;
  /** Highest reserved bytes with it. */
  peak_reserved_bytes: number;
  /** Of reserved bytes. */
  saves_bytes: number;
  /** Whether it is enough by itself. */
  is_enough: boolean;
  /** How the figure came about. */
  arithmetic: string;
}

/** Memory that was allocated in one module. */
export interface ModuleMemory {
  /** Its class, or the line that calls it; null for what was allocated in none. */
  module: string | null;
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
}

/** What could not be judged. */
export interface NotJudged {
  /** What could have been found. */
  kind: string;
  /** Why not. */
  reason: string;
  /** The one thing to do about it; null where nothing helps. */
  remedy: string | null;
  /** `part` or `whole`. */
  gap: Gap;
  /** Whether no finding means nothing because of it. */
  decides: boolean;
}

/** The failed requests of a job. */
export interface Oom {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** Requests that failed; the last ones of each rank are below. */
  failed: number;
  /** By time. */
  failures: Failed[];
  /** One for each way in which ranks failed. */
  findings: Finding[];
  /** What allocator settings would have done for the first failure; null where nothing failed. */
  replay: Advice | null;
  /** What was looked at. */
  judged: Judged;
  /** What was not, the gaps that decide first. */
  not_judged: NotJudged[];
}

/** Memory of one name. */
export interface Owned {
  /** The name, as the process gave it. */
  owner: string;
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
  /** Of what is allocated. */
  share: number;
}

/** The change of a holder's length, compared with the bytes of the site. */
export interface Pace {
  /** When the earlier answer came. */
  since: Time;
  /** Items then, */
  length_before: number;
  /** and now. */
  length_now: number;
  /** Live bytes of the site then, */
  bytes_before: number;
  /** and now. */
  bytes_now: number;
  /** Whether it became longer while these became more. */
  grew_with_bytes: boolean;
}

/** Memory that was allocated for one purpose, in one module, at one site. */
export interface Part {
  /** Its class. */
  class: string;
  /** The module's class, or the line that calls it; null for what was allocated in none. */
  module: string | null;
  /** The innermost frame of the user's own code; null when no stack was recorded. */
  site: Frame | null;
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
}

/** Live memory at the moment with most allocated bytes. */
export interface Peak {
  /** Allocated then. */
  allocated_bytes: number;
  /** Reserved at most. */
  peak_reserved_bytes: number;
  /** Among them, bytes of a request that failed when it was recorded. */
  failed_bytes: number;
  /** By class, most first. */
  classes: Held[];
  /** By module, most first. */
  modules: Held[];
  /** By site and class, most first. */
  sites: FitHolder[];
  /** Modules that had no room in the answer, and their bytes. */
  modules_left_out: LeftOut;
  /** Sites that had no room in the answer, and their bytes. */
  sites_left_out: LeftOut;
}

/** Another rank. */
export interface Peer {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Held from the driver at its last boundary. */
  reserved_bytes: number;
  /** The most it had allocated. */
  peak_allocated_bytes: number;
  /** Free on its device. */
  device_free_bytes: number | null;
}

/** The state of an alert. */
export type Phase = 'pending' | 'firing' | 'resolved';

/** The levels within one stretch of time. */
export interface Point {
  /** Its beginning. */
  first_at: Time;
  /** Its end. */
  last_at: Time;
  /** Epoch at its end. */
  epoch: number;
  /** Step at its end. */
  step: number;
  /** At its end. */
  allocated_bytes: number;
  /** At its end. */
  reserved_bytes: number;
  /** Highest within. */
  peak_allocated_bytes: number;
  /** Highest within. */
  peak_reserved_bytes: number;
  /** Lowest within. */
  min_allocated_bytes: number;
}

/** A private pool of the allocator: a CUDA graph's, or a `MemPool`. */
export interface Pool {
  /** PyTorch's id of it, `0.1`. */
  pool: string;
  /** Taken from the driver. */
  reserved_bytes: number;
  /** Of these, handed out. */
  allocated_bytes: number;
  /** The name that most of the memory in it has; null when none has one. */
  owner: string | null;
}

/** A process that allocated. */
export interface Process {
  /** Its name within the job: what `--process` takes. */
  process: string;
  /** Its role; null if unknown. */
  role: string | null;
  /** Its rank. */
  rank: number;
  /** Host name. */
  host: string | null;
  /** Process id. */
  pid: number | null;
  /** Its parent's. */
  parent_pid: number | null;
  /** Indexes of the devices that it used. */
  devices: number[];
  /** Events stored. */
  events: number;
  /** Bytes in the store. */
  stored_bytes: number;
  /** `running`, `finished`, `failed` or `lost`. */
  state: JobState;
  /** How it ended, when it did not end well. */
  failure: string | null;
  /** When it was first heard of. */
  started_at: Time;
  /** When it ended. */
  ended_at: Time | null;
  /** Framework and version. */
  framework: string | null;
  /** What its figures rest on. */
  completeness: Completeness;
}

/** A question and its answer. */
export interface Question {
  /** The question. */
  question: string;
  /** The answer, by paragraphs. */
  answer: string[];
  /** Code as it may be now: an example of the pattern. */
  before: string[];
  /** Code as it should be. */
  after: string[];
  /** Commands to copy. */
  commands: string[];
}

/** One rank. */
export interface Rank {
  /** Its number. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Host name. */
  host: string | null;
  /** Process id. */
  pid: number | null;
  /** Device index in the process. */
  device: number;
  /** The device's UUID. */
  gpu_uuid: string | null;
  /** Framework and version. */
  framework: string | null;
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** Epochs that ended. */
  epochs: number;
  /** Steps that ended. */
  steps: number;
  /** Events. */
  events: number;
  /** At the last boundary. */
  allocated_bytes: number | null;
  /** At the last boundary. */
  reserved_bytes: number | null;
  /** Highest. */
  peak_allocated_bytes: number | null;
  /** Highest. */
  peak_reserved_bytes: number | null;
  /** In use on the device by all processes. */
  device_used_bytes: number | null;
  /** Share of the reserved bytes that no live block used at the last boundary. */
  fragmentation_ratio: number | null;
  /** Growth of the allocated bytes from epoch end to epoch end. */
  growth_bytes_per_epoch: number | null;
  /** Requests that succeeded only after cached memory was given back. */
  alloc_retries: number | null;
  /** Requests that failed. */
  ooms: number;
  /** At each epoch's end. */
  epoch_ends: EpochEnd[];
  /** The device's name. */
  gpu_name: string | null;
  /** All bytes of the device. */
  device_total_bytes: number | null;
  /** State of the rank's session. */
  state: JobState;
  /** How it ended, when it did not end well. */
  failure: string | null;
  /** Bytes in the store. */
  stored_bytes: number;
  /** What this rank's figures rest on. */
  completeness: Completeness;
  /** What was measured last, teardown left out. */
  sample: Sample | null;
  /** The highest of each quantity that was measured. */
  highest: Sample | null;
  /** The moment that the levels are of: `epoch_end`, `step_end`, `window_end`, or `end` of what is stored. */
  levels_at: string;
  /** Allocated at the end of what is stored, where that is another moment: after teardown. */
  end_allocated_bytes: number | null;
  /** Reserved then. */
  end_reserved_bytes: number | null;
  /** Figures of it that stand out among the ranks, by name. */
  stands_out: string[];
  /** Ids of the findings that distinguish it from other ranks. */
  findings: string[];
  /** Expandable segments are exported and not in force, as the segments show. */
  expandable_overruled: boolean;
}

/** A site's growth on one rank. */
export interface RankGrowth {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Slope of the live bytes at epoch ends. */
  bytes_per_epoch: number;
  /** Live at the last one. */
  live_bytes: number;
  /** Blocks live at the last one. */
  live_blocks: number;
  /** First epoch after which it had grown. */
  first_epoch: number;
  /** Live bytes at each epoch end. */
  series_bytes: number[];
  /** Id of the finding that explains it; null where none does. */
  explained_by: string | null;
}

/** One device of a rank. */
export interface RankReplays {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Whether the replay of the recorded settings repeats every segment and every address. */
  exact: boolean;
  /** What was recorded. */
  recorded: Recorded;
  /** The same, replayed. */
  replayed: Replayed;
  /** Other settings and limits. */
  settings: Setting[];
  /** The one to take; null where none is worth it. */
  recommended: Recommended | null;
}

/** The live memory of one rank. */
export interface RankSites {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** The moment. */
  at: Time;
  /** The epoch under way or just ended. */
  epoch: number;
  /** The step under way or just ended. */
  step: number;
  /** Whether the figures are exact. */
  exact: boolean;
  /** At that moment. */
  allocated_bytes: number | null;
  /** At that moment. */
  reserved_bytes: number | null;
  /** Most bytes first. */
  sites: Site[];
  /** Smaller ones that the answer leaves out; null where it has all. */
  further: Further | null;
  /** Whether more sites lived at once than are counted separately: those beyond are one without a stack. */
  merged: boolean;
}

/** The timeline of one rank. */
export interface RankTimeline {
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** In the order of time. */
  points: Point[];
  /** In the order of time. */
  marks: Mark[];
  /** For the page: the lowest level from each moment up to the last boundary, in the order of time. */
  floor?: FloorStep[];
}

/** What a receiver knows of an alert. */
export interface Receiver {
  /** Its name. */
  receiver: string;
  /** The phase it was last notified of; null if it was never notified. */
  told: Phase | null;
  /** When. */
  told_at: Time | null;
  /** Notifications given up. */
  given_up: number;
  /** Why the last one was. */
  last_error: string | null;
}

/** The recommended setting. */
export interface Recommended {
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** Reserved bytes less than under the recorded settings. */
  saves_bytes: number;
  /** One sentence. */
  why: string;
}

/** What was recorded. */
export interface Recorded {
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** Framework and version. */
  torch: string | null;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Highest requested bytes. */
  peak_requested_bytes: number;
  /** Segments and pages that the driver gave. */
  device_allocs: number;
  /** Segments and pages that went back. */
  device_frees: number;
  /** Requests that were served only after the whole cache was released; null if unknown. */
  retries: number | null;
}

/** A recording and its size. */
export interface Recording {
  /** The job's name. */
  job: string;
  /** The attempt. */
  attempt: number;
  /** The number that it was recorded at, where it was named. */
  size: number | null;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Whether the replay of its own settings repeats it. */
  exact: boolean;
  /** The same requests, replayed without a change and without a limit: what other figures are compared with. */
  replayed: FitReplayed;
}

/** The recorded settings, replayed. */
export interface Replayed {
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** Whose rules. */
  torch: string | null;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Highest requested bytes. */
  peak_requested_bytes: number;
  /** Calls that gave memory. */
  device_allocs: number;
  /** Calls that took it back. */
  device_frees: number;
  /** Requests that were served only after the whole cache was released. */
  retries: number;
  /** The first event that differs from the recording. */
  differs_at: At | null;
}

/** Everything that `memctl query` prints. */
export interface Report {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** The ranks, in their order. */
  ranks: Rank[];
  /** Every process that allocated, by rank, then by start. */
  processes: Process[];
  /** What is wrong, the worst first. */
  findings: Finding[];
  /** Sites whose live bytes grew from epoch end to epoch end, most first. */
  growth: Growth[];
  /** Where epochs and steps come from. */
  boundaries: Boundaries;
  /** What is usual among the ranks, for each figure that enough of them have. */
  spread: Spread[];
  /** The call through which most of the growth comes that no finding explains. */
  growth_through: Through | null;
  /** What the job's memory did; null from a daemon that does not say. */
  verdict: Verdict | null;
  /** What was looked at. */
  judged: Judged;
  /** What was not, the gaps that decide first. */
  not_judged: NotJudged[];
}

/** The role of a caller. */
export type Role = 'agent' | 'reader' | 'operator' | 'admin';

/** The rules that a request follows. */
export interface Rules {
  /** Sizes are rounded up to a multiple of this, at least. */
  round_bytes: number;
  /** Rounded requests up to this many bytes are served from segments of small blocks. */
  small_bytes_max: number;
}

/** The last measurement of each quantity within the last recorded half minute. */
export interface Sample {
  /** When the newest of them was measured. */
  at: Time;
  /** The allocator's own counter. */
  allocated_bytes: number | null;
  /** The allocator's own counter. */
  reserved_bytes: number | null;
  /** In use on the device by all processes. */
  device_used_bytes: number | null;
  /** All bytes of the device. */
  device_total_bytes: number | null;
  /** In use on the device by this process. */
  process_used_bytes: number | null;
  /** In use on the device by processes that are not of this job's rank. */
  foreign_used_bytes: number | null;
  /** How busy the device is, 0..1. */
  utilisation: number | null;
  /** Host memory of the process. */
  host_rss_bytes: number | null;
  /** Host memory of its children (data loaders). */
  children_rss_bytes: number | null;
}

/** How the requests of one recording are assumed to scale. */
export interface Scaled {
  /** Requests for memory. */
  requests: number;
  /** The same at every size, for certain or more likely. */
  fixed: number;
  /** Bytes of these. */
  fixed_bytes: number;
  /** In proportion to the size, for certain or more likely. */
  proportional: number;
  /** Bytes of these. */
  proportional_bytes: number;
  /** Those among them that are in doubt. */
  doubtful: number;
  /** Bytes of these. */
  doubtful_bytes: number;
}

/** A segment, or a mapped range of an expandable one. */
export interface Segment {
  /** Device address. */
  address: number;
  /** Bytes. */
  bytes: number;
  /** Stream its blocks belong to, in hexadecimal. */
  stream: string;
  /** The pool; null for the default pool. */
  pool: string | null;
  /** Of a private pool: the name that most of the memory in it has. */
  owner: string | null;
  /** Whether its blocks are those up to 1 MiB. */
  small: boolean;
  /** Whether it is a mapped range of an expandable segment. */
  expandable: boolean;
  /** Live behind so many events on; null if it was so before the stretch. */
  from_event: number | null;
  /** Gone behind so many events; null if it is not within the stretch. */
  to_event: number | null;
}

/** One setting under one limit. */
export interface Setting {
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** The process's share of the device. */
  limit_bytes: number | null;
  /** Highest reserved bytes. */
  peak_reserved_bytes: number;
  /** Highest allocated bytes. */
  peak_allocated_bytes: number;
  /** Calls that gave memory. */
  device_allocs: number;
  /** Calls that took it back. */
  device_frees: number;
  /** Requests that were served only after the whole cache was released. */
  retries: number;
  /** Where it ended. */
  out_of_memory: Ended | null;
  /** What to know before it is used. */
  cautions: string[];
  /** Lowest and highest peak of reserved bytes where no replay is possible; null where it is. */
  bounds: number[] | null;
}

/** How serious a finding is. */
export type Severity = 'info' | 'warning' | 'critical';

/** A site's share of the live memory. */
export interface Share {
  /** The innermost frame of the user's own code. */
  site: Frame;
  /** Live bytes. */
  live_bytes: number;
}

/** One silence; a criterion that is null matches everything. */
export interface Silence {
  /** Its id. */
  id: string;
  /** Job, with `*` for anything. */
  job: string | null;
  /** Kind of finding. */
  kind: string | null;
  /** Rule. */
  rule: string | null;
  /** Ranks; all when empty. */
  ranks: number[];
  /** Labels. */
  labels: Record<string, string>;
  /** When it was made. */
  created_at: Time;
  /** When it ends. */
  ends_at: Time;
  /** Who made it. */
  author: string | null;
  /** Why. */
  comment: string | null;
  /** The tenant whose alerts it keeps quiet, `*` for all. */
  tenant: string;
}

/** Silences. */
export interface Silences {
  /** See `SCHEMA`. */
  schema: number;
  /** Those that end first first. */
  silences: Silence[];
}

/** Live memory of one stack. */
export interface Site {
  /** Live bytes. */
  live_bytes: number;
  /** Live blocks. */
  live_blocks: number;
  /**
   * What nine tenths of its bytes or more are for, by the ledger's classes; null where that is not one class, or
   * more than 8 devices were asked for at once.
   */
  class: string | null;
  /** The innermost frame of the user's own code; null when no stack was recorded. */
  site: Frame | null;
  /** Whose memory it is, as the process named it; null when it did not. */
  owner: string | null;
  /** Innermost first; empty when no stack was recorded. */
  stack: Frame[];
  /** By the epoch in which it was allocated. */
  births: Birth[];
}

/** Live memory by allocation site. */
export interface Sites {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** By rank. */
  ranks: RankSites[];
}

/** The columns. */
export interface Sparkline {
  /** See `SCHEMA`. */
  schema: number;
  /** The rank; null where nothing is stored. */
  rank: number | null;
  /** The process, by its name within the job. */
  process: string | null;
  /** Highest within each stretch of time. */
  peak_allocated_bytes: number[];
  /** Lowest within. */
  min_allocated_bytes: number[];
  /** At its end. */
  reserved_bytes: number[];
}

/** The usual values among the ranks. */
export interface Spread {
  /** Which figure. */
  figure: string;
  /** Its median. */
  median_bytes: number;
  /** Its median absolute deviation. */
  mad_bytes: number;
  /** Further from the median than this stands out. */
  limit_bytes: number;
}

/** Live blocks of one site beside free memory. */
export interface StrandingHolder {
  /** Who allocated them; null when no stack was recorded. */
  site: FindingSite | null;
  /** Blocks. */
  live_blocks: number;
  /** Their bytes. */
  live_bytes: number;
  /** Segments they lie in. */
  segments: number;
  /** Free bytes of these segments, shared evenly by their live blocks. */
  stranded_bytes: number;
  /** Earliest birth. */
  birth_epoch: number;
  /** Earliest birth. */
  birth_step: number;
  /** Phase of the earliest birth. */
  birth_phase: string | null;
}

/** A call through which much of the growing memory is allocated. */
export interface Through {
  /** Growth an epoch that comes through it. */
  bytes_per_epoch: number;
  /** Growth an epoch of all sites that no finding explains. */
  total_bytes_per_epoch: number;
  /** Function. */
  function: string;
  /** File, as recorded. */
  file: string;
  /** Line; null when unknown. */
  line: number | null;
}

/** The head of a tile. */
export interface TileHead {
  /** See `SCHEMA`. */
  schema: number;
  /** The session whose tile it is: a process that attached again is another one. */
  session: string;
  /** The rank. */
  rank: number;
  /** The process, by its name within the job. */
  process: string;
  /** Device index in the process. */
  device: number;
  /** A slot has 2^level nanoseconds. */
  level: number;
  /** Tiles of this level before it, since the Unix epoch. */
  index: number;
  /** Its beginning. */
  first_at: string;
  /** Slots of every tile. */
  slots: number;
  /** Slots before the first one that is included: nothing is known of them. */
  first_slot: number;
  /** Number of slots that are included. */
  count: number;
  /** What it is made of. */
  detail: string;
  /** Chunks that are included only by their bounds so far. */
  coarse_chunks: number;
  /** Whether it never changes any more. */
  is_final: boolean;
  /** Whether the figures are exact: nothing was dropped. */
  exact: boolean;
  /** The columns behind the head. */
  columns: string[];
  /** In the order of time; none where too many chunks are in the tile. */
  marks: Mark[];
  /** Marks that had no room. */
  marks_left_out: number;
}

/** Nanoseconds since 1970; in an answer RFC 3339 in UTC, with all known digits. */
export type Time = string;

/** Memory over time. */
export interface Timeline {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** By rank. */
  ranks: RankTimeline[];
  /** Points that each device has at most: fewer than were asked for where the job has many devices. */
  points: number;
}

/** Measures that bring a training below a number of bytes. */
export interface Under {
  /** The number. */
  limit_bytes: number;
  /** Highest reserved bytes as recorded, replayed. */
  peak_reserved_bytes: number;
  /** By how much that is above the number; 0 where it is not. */
  excess_bytes: number;
  /** What must go, in this order. */
  must_go: Gone[];
  /** Whether that is enough. */
  is_enough: boolean;
  /** What comes before every measure, where memory grows. */
  first: string | null;
  /** What would save memory, those that are enough first. */
  measures: Measure[];
}

/** How much memory a rank uses, and for what. */
export interface Usage {
  /** The rank. */
  rank: number;
  /** At `moment`. */
  allocated_bytes: number | null;
  /** At `moment`. */
  reserved_bytes: number | null;
  /** Highest. */
  peak_allocated_bytes: number | null;
  /** Highest. */
  peak_reserved_bytes: number | null;
  /** Share of the reserved bytes that no live block used at the last boundary. */
  fragmentation_ratio: number | null;
  /** In use on the device by all processes. */
  device_used_bytes: number | null;
  /** All bytes of the device. */
  device_total_bytes: number | null;
  /** In use on the device by processes that are not of this rank. */
  foreign_used_bytes: number | null;
  /** `PYTORCH_CUDA_ALLOC_CONF`. */
  allocator_conf: string;
  /** When these levels were read. */
  moment: string;
  /** The largest sites, most bytes first. */
  by: Share[];
  /** Live in other sites. */
  other_bytes: number;
  /** How many other sites. */
  other_sites: number;
  /** What was allocated at the peak, by class; empty if that is unknown. */
  peak_classes: ClassShare[];
  /** Live without a recorded stack; null when no table of live memory was stored. */
  without_stack_bytes: number | null;
}

/** What a job's memory did: see `memctl_model::verdict`. */
export interface Verdict {
  /** Its kind's name. */
  kind: string;
  /** `known` or `open`; null where the kind has none. */
  cause: string | null;
  /** `device`, `outside_allocator` or `host`; null where nothing was measured. */
  memory: string | null;
  /** The first sentence of every page. */
  sentence: string;
  /** Bytes by which memory has grown. */
  grown_bytes: number | null;
  /** Seconds in which it grew. */
  seconds: number | null;
  /** Where it was allocated. */
  site: Frame | null;
  /** Ranks concerned, ascending. */
  ranks: number[];
  /** Processes concerned. */
  processes: string[];
  /** Bytes at which it will stop. */
  bound_bytes: number | null;
  /** Whether the device has room for that. */
  fits: boolean | null;
  /** What holds it. */
  holder: string | null;
  /** The least live memory at the boundaries of the last third, where it was not flat. */
  lowest_bytes: number | null;
  /** The most. */
  highest_bytes: number | null;
}

/** The jobs that alerts come from: the newest `JOBS_LISTED`. */
export interface Watched {
  /** How many. */
  jobs: number;
  /** Of these read from files; they raise alerts only where the rules say so. */
  imported: number;
  /** Jobs that could not be analysed, or not yet: the absence of alerts for them means nothing. */
  not_judged: string[];
}

/** The memory under other settings. */
export interface WhatIf {
  /** See `SCHEMA`. */
  schema: number;
  /** The job. */
  job: Job;
  /** What the answer rests on. */
  completeness: Completeness;
  /** By rank and device. */
  ranks: RankReplays[];
  /** Ranks that were not replayed. */
  ranks_left_out: number;
  /** What no figure covers. */
  not_looked_at: string[];
}

/** The peak if the blocks of a site did not exist. */
export interface Without {
  /** The site, as it was asked for. */
  site: string;
  /** The places that were taken for it. */
  places: Frame[];
  /** Requests of the site. */
  requests: number;
  /** Highest allocated bytes without them. */
  peak_allocated_bytes: number;
  /** Highest reserved bytes without them. */
  peak_reserved_bytes: number;
  /** Of allocated bytes. */
  saves_allocated_bytes: number;
  /** Of reserved bytes. */
  saves_reserved_bytes: number;
}
