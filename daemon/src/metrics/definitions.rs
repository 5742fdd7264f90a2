//! The table of all metrics: name, kind, labels and meaning.
//!
//! Guarantees: [`ALL`] is complete. A test checks that docs/metrics.md has the same content. Names and base units
//! follow Prometheus.
//! Refuses: labels whose number grows with a training: no stacks, no sites, no sessions.

use super::family::{Definition, Kind};

/// The labels of a job: an attempt of a run.
const JOB: &[&str] = &["job", "tenant", "run", "attempt"];
/// The labels of a device of a process. `gpu`, `UUID` and `host` match those of dcgm-exporter.
pub const DEVICE: &[&str] = &["job", "tenant", "run", "attempt", "rank", "process", "host", "gpu", "UUID"];

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $constant: Definition =
                Definition { name: $name, kind: Kind::$kind, labels: $labels, help: $help };
        )*
        /// Every metric, in the order of the output.
        pub static ALL: &[&Definition] = &[$(&$constant),*];
    };
}

metrics! {
    BUILD = Gauge "memctl_build_info" &["version", "store", "schema"],
        "Always 1; the labels are the version of memctl, the kind of the store and its schema.";
    READY = Gauge "memctl_ready" &[], "Whether the daemon is ready, as /readyz says.";
    STORE_UP = Gauge "memctl_store_up" &[], "Whether the store has answered the last probe.";
    STORE_PROBE = Gauge "memctl_store_probe_duration_seconds" &[], "How long the store took to answer the last probe.";
    STORE_JOBS = Gauge "memctl_store_jobs" &[], "Attempts of jobs in the store.";
    STORE_BYTES = Gauge "memctl_store_payload_bytes" &[], "Payload bytes in the store: what agents sent and retention has not removed.";
    STORE_SIZE = Gauge "memctl_store_size_bytes" &[], "Total disk usage of the store, in bytes.";
    STORE_DAMAGED = Gauge "memctl_store_damaged_items" &[], "Stored items found damaged when read; answers leave them out.";
    STORE_EVENTS = Gauge "memctl_store_events" &[], "Events received so far, including those that retention has removed.";
    STORE_EXPIRED = Gauge "memctl_store_expired_events" &[], "Events that retention has removed.";
    CONNECTIONS = Gauge "memctl_connections" &["port"], "Connections that are open: of the port for gRPC (grpc), and of the port for metrics and health (http).";
    CONNECTIONS_REFUSED = Counter "memctl_connections_refused_total" &["port"], "Connections that were refused because there were too many, in all or of one peer.";
    STREAMS = Gauge "memctl_streams" &[], "Sessions that are streaming now.";
    ITEMS = Counter "memctl_ingest_items_total" &["kind"], "Items that were stored, by kind.";
    BYTES = Counter "memctl_ingest_bytes_total" &[], "Payload bytes that were stored.";
    EVENTS = Counter "memctl_ingest_events_total" &[], "Events that were stored.";
    DUPLICATES = Counter "memctl_ingest_duplicate_items_total" &[], "Items that came twice and were stored once.";
    MISSING = Counter "memctl_ingest_missing_items_total" &[], "Items that agents numbered and that never came.";
    QUEUE = Gauge "memctl_ingest_queue_bytes" &[], "Bytes that wait for their commit, of all sessions.";
    QUEUE_MAX = Gauge "memctl_ingest_queue_limit_bytes" &[], "Bytes that may wait for their commit; beyond, streams are not read.";
    REFUSED = Counter "memctl_streams_refused_total" &["reason"], "Streams of agents that were refused, by reason.";
    DROPPED = Counter "memctl_events_dropped_total" &["reason"], "Events that agents dropped and counted, by reason, as far as they were reported to this daemon.";
    COMMITS = Histogram "memctl_commit_duration_seconds" &[], "How long the store took to commit what had gathered.";
    COMMITS_FAILED = Counter "memctl_commit_failures_total" &[], "Sessions whose part of a commit failed: their streams end and are resumed.";
    JUDGE_LAG = Gauge "memctl_judge_lag_seconds" &[], "For how long the oldest data that the judge has not seen has been waiting.";
    JUDGE_WAITING = Gauge "memctl_judge_waiting_jobs" &[], "Jobs with data that the judge has not seen.";
    JUDGE_MEMORY = Gauge "memctl_judge_memory_bytes" &[], "Bytes of memory that the judge keeps, of all jobs.";
    JUDGE_MEMORY_MAX = Gauge "memctl_judge_memory_limit_bytes" &[], "Bytes of memory that the judge may keep; beyond, it forgets the jobs that were not asked for longest.";
    ALERTS = Gauge "memctl_alerts" &["state"], "Alerts by state: pending, firing or resolved.";
    ALERTS_REFUSED = Counter "memctl_alerts_refused_total" &[], "Alerts that were not created because there were too many.";
    NOTIFIED = Counter "memctl_notifications_total" &["receiver", "outcome"], "Alerts that were delivered to a receiver, or could not be (failed).";
    TASK_UP = Gauge "memctl_task_up" &["task"], "Whether a task of the daemon runs.";
    RESTARTS = Counter "memctl_task_restarts_total" &["task"], "How often a task of the daemon failed and was restarted.";
    RELOADS = Counter "memctl_config_reloads_total" &["outcome"], "How often the configuration was read again on SIGHUP: applied or refused.";
    RELOADED = Gauge "memctl_config_last_reload_successful" &[], "Whether the last SIGHUP was followed; 1 before the first.";
    EXPORTS = Counter "memctl_otlp_exports_total" &["outcome"], "How often all metrics were sent by OTLP: delivered or failed. Absent where they are not sent.";
    JOBS_SHOWN = Gauge "memctl_jobs_exported" &[], "Jobs that have series here: those that run or ended within the last 15 minutes.";
    JOBS_LEFT_OUT = Gauge "memctl_jobs_not_exported" &[], "Jobs that would have series here and have none, because there are too many.";
    JOB_INFO = Gauge "memctl_job_info" &["job", "tenant", "run", "attempt", "state"], "Always 1; the label is the job's state: running, finished, failed or lost.";
    JOB_RANKS = Gauge "memctl_job_ranks" &["job", "tenant", "run", "attempt", "state"], "Processes of the job by their state.";
    JOB_EXPECTED = Gauge "memctl_job_expected_ranks" JOB, "Ranks that the launcher said there would be.";
    JOB_DEVICES = Gauge "memctl_job_devices" JOB, "Devices that the job's processes use.";
    JOB_DEVICES_SHOWN = Gauge "memctl_job_devices_exported" JOB, "Devices of the job that have series here: all, or of a large job the extremes.";
    JOB_JUDGED = Gauge "memctl_job_judged_timestamp_seconds" JOB, "When the figures of the job were taken.";
    JOB_ALLOCATED = Gauge "memctl_job_allocator_allocated_bytes" &["job", "tenant", "run", "attempt", "aggregation"], "Allocated bytes over all devices of the job: min, median, max and sum.";
    JOB_RESERVED = Gauge "memctl_job_allocator_reserved_bytes" &["job", "tenant", "run", "attempt", "aggregation"], "Reserved bytes over all devices of the job: min, median, max and sum.";
    JOB_EPOCHS = Counter "memctl_job_epochs_total" JOB, "Epochs that the furthest rank has ended.";
    JOB_STEPS = Counter "memctl_job_steps_total" JOB, "Steps that the furthest rank has ended.";
    JOB_EVENTS = Counter "memctl_job_events_total" JOB, "Events of the job that were received, including those that retention has removed.";
    JOB_DROPPED = Counter "memctl_job_events_dropped_total" JOB, "Events of the job that its agents dropped and counted.";
    JOB_KEPT = Gauge "memctl_job_kept_bytes" JOB, "Bytes that the store keeps for the job, payloads and rows, as retention counts them; a minute old at most.";
    JOB_OOMS = Counter "memctl_ooms_total" JOB, "Requests for memory that failed, over all ranks of the job.";
    JOB_RETRIES = Counter "memctl_alloc_retries_total" JOB, "How often the allocators of the job emptied their caches and tried again.";
    JOB_TIME_TO_OOM = Gauge "memctl_time_to_out_of_memory_seconds" JOB, "Time until a device of the job is full at the slope of what grows; absent where nothing grows.";
    JOB_FINDINGS = Gauge "memctl_findings" &["job", "tenant", "run", "attempt", "kind", "severity"], "What is wrong with the job, by kind and severity.";
    ALLOCATED = Gauge "memctl_allocator_allocated_bytes" DEVICE, "Bytes that the allocator has handed out, at the last boundary.";
    RESERVED = Gauge "memctl_allocator_reserved_bytes" DEVICE, "Bytes that the allocator holds from the driver, at the last boundary.";
    PEAK = Gauge "memctl_allocator_peak_allocated_bytes" DEVICE, "Most bytes that the allocator had handed out at a time since the process began.";
    DEVICE_USED = Gauge "memctl_device_used_bytes" DEVICE, "Bytes in use on the device by all processes, as measured by the driver.";
    DEVICE_TOTAL = Gauge "memctl_device_memory_bytes" DEVICE, "Bytes of the device.";
    GROWTH = Gauge "memctl_growth_bytes_per_epoch" DEVICE, "Growth of the allocated bytes from epoch end to epoch end, over the last 64 epochs.";
    FRAGMENTATION = Gauge "memctl_fragmentation_ratio" DEVICE, "Share of the reserved bytes that no live block uses, at the last boundary.";
    STEPS = Counter "memctl_steps_total" DEVICE, "Steps that have ended on this device.";
    CPU = Counter "process_cpu_seconds_total" &[], "Processor time that the daemon has used.";
    RESIDENT = Gauge "process_resident_memory_bytes" &[], "Resident memory of the daemon.";
    VIRTUAL = Gauge "process_virtual_memory_bytes" &[], "Virtual memory of the daemon.";
    FILES = Gauge "process_open_fds" &[], "Open file descriptors of the daemon.";
    FILES_MAX = Gauge "process_max_fds" &[], "File descriptors that the daemon may open.";
    STARTED = Gauge "process_start_time_seconds" &[], "When the daemon was started, in seconds since the Unix epoch.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_as_prometheus_wants_them() {
        let names: BTreeSet<&str> = ALL.iter().map(|definition| definition.name).collect();
        assert_eq!(names.len(), ALL.len());
        for definition in ALL {
            let counts = definition.kind == Kind::Counter;
            assert_eq!(definition.name.ends_with("_total"), counts, "{}", definition.name);
            assert!(definition.help.ends_with('.') && !definition.help.contains('\n'), "{}", definition.name);
        }
    }
}
