//! Limits on what may come in. Every one is checked before anything is allocated on the sender's word.

/// Events in one chunk: 64k keep the varint columns in the L2 cache and cost 0.03 byte an event against 256k.
pub const CHUNK_EVENTS_MAX: usize = 65_536;
/// Bytes of one encoded chunk; 64k incompressible events come to about 3 MiB.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Bytes of one column after decompression: 64k events at 40 bytes.
pub const COLUMN_BYTES_MAX: usize = 4 << 20;
/// Bytes of one item on the wire; a keyframe of 100,000 blocks stays below.
pub const ITEM_BYTES_MAX: usize = 8 << 20;
/// Bytes of one item after decompression.
pub const ITEM_UNPACKED_BYTES_MAX: usize = 64 << 20;
/// Bytes that one item may take in memory once it is decoded: a keyframe of a million blocks takes 100 MiB.
pub const ITEM_DECODED_BYTES_MAX: usize = 192 << 20;
/// Bytes that a hello may take in memory once it is decoded; one with every name as long as it may be takes a third.
pub const HELLO_DECODED_BYTES_MAX: usize = 4 << 20;
/// Bytes of one gRPC message: an item and its envelope.
pub const MESSAGE_BYTES_MAX: usize = ITEM_BYTES_MAX + (64 << 10);
/// Frames of one stack; deeper ones are cut at the outer end.
pub const STACK_FRAMES_MAX: usize = 512;
/// Stacks of one session; later ones count as "no stack".
pub const SESSION_STACKS_MAX: usize = 1 << 20;
/// Frames of one session.
pub const SESSION_FRAMES_MAX: usize = 4 << 20;
/// Bytes that the stacks of one session take in memory: 32 times what those of a large session take.
pub const SESSION_STACK_BYTES_MAX: usize = 64 << 20;
/// Bytes of a function or file name; longer ones are cut.
pub const NAME_BYTES_MAX: usize = 4_096;
/// Bytes of the name that a process gives its memory; longer ones are cut.
pub const OWNER_BYTES_MAX: usize = 256;
/// Pairs of a stack and a name that one session tells apart; memory beyond them is told without its name.
pub const SESSION_OWNED_STACKS_MAX: usize = 16_384;
/// Bytes of a job's name, a host's name, a label.
pub const LABEL_BYTES_MAX: usize = 256;
/// Labels of a job.
pub const LABELS_MAX: usize = 64;
/// Devices of one session.
pub const DEVICES_MAX: usize = 64;
/// Chunks between two regular keyframes: 4 × 64k events are replayed in some 10 ms, and a keyframe is small beside them.
pub const KEYFRAME_CHUNKS: u64 = 4;

/// Points of a timeline, per rank: more than any screen has columns.
pub const TIMELINE_POINTS_MAX: u32 = 10_000;

/// Whether a job's name is one that can be typed, printed and used in a path: letters, digits and `._:@/+-`, at most
/// [`LABEL_BYTES_MAX`] bytes, not beginning with `-`; between slashes there is something, and never `.` or `..`, so that it
/// leads nowhere else. `latest` stands for the newest job and is nobody's name.
#[must_use]
pub fn is_job_name(name: &str) -> bool {
    name != "latest"
        && name.len() <= LABEL_BYTES_MAX
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@/+-".contains(&b))
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Jobs that a list names when the question names no number: the newest.
pub const JOBS_LISTED: u32 = 100;

#[cfg(test)]
mod tests {
    use super::is_job_name;

    #[test]
    fn names_of_jobs_lead_nowhere_else() {
        for good in ["vit", "run/1", "a..b", "x.y:z@h+1-2", ".hidden", "latest-2", "a/latest"] {
            assert!(is_job_name(good), "{good}");
        }
        for bad in ["", "latest", "..", ".", "/", "//", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "-a", "a b", "é"]
        {
            assert!(!is_job_name(bad), "{bad}");
        }
    }
}
