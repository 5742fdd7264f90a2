//! Limits on input. A size that a sender claims is checked against its limit before memory is allocated for it.

/// Events in one chunk: with 64k the varint columns stay in the L2 cache, at a cost of 0.03 byte per event against
/// 256k.
pub const CHUNK_EVENTS_MAX: usize = 65_536;
/// Bytes of one encoded chunk; 64k incompressible events need about 3 MiB.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Bytes of one column after decompression: 64k events at 40 bytes.
pub const COLUMN_BYTES_MAX: usize = 4 << 20;
/// Bytes of one item on the wire; a keyframe of 100,000 blocks needs less.
pub const ITEM_BYTES_MAX: usize = 8 << 20;
/// Bytes of one item after decompression.
pub const ITEM_UNPACKED_BYTES_MAX: usize = 64 << 20;
/// Bytes that one item may need in memory after decoding; a keyframe of a million blocks needs 100 MiB.
pub const ITEM_DECODED_BYTES_MAX: usize = 192 << 20;
/// Bytes that a hello may need in memory after decoding; one with every name at its maximum needs a third.
pub const HELLO_DECODED_BYTES_MAX: usize = 4 << 20;
/// Bytes of one gRPC message: an item and its envelope.
pub const MESSAGE_BYTES_MAX: usize = ITEM_BYTES_MAX + (64 << 10);
/// Frames of one stack; deeper ones are cut at the outer end.
pub const STACK_FRAMES_MAX: usize = 512;
/// Stacks of one session; later ones count as "no stack".
pub const SESSION_STACKS_MAX: usize = 1 << 20;
/// Frames of one session.
pub const SESSION_FRAMES_MAX: usize = 4 << 20;
/// Bytes that the stacks of one session may need in memory: 32 times those of a large session.
pub const SESSION_STACK_BYTES_MAX: usize = 64 << 20;
/// Bytes of a function or file name; longer ones are cut.
pub const NAME_BYTES_MAX: usize = 4_096;
/// Bytes of the owner's name that a process gives to its memory; longer names are cut.
pub const OWNER_BYTES_MAX: usize = 256;
/// Pairs of a stack and a name that one session distinguishes; memory beyond them is reported without its name.
pub const SESSION_OWNED_STACKS_MAX: usize = 16_384;
/// Bytes of a job's name, a host's name, a label.
pub const LABEL_BYTES_MAX: usize = 256;
/// Labels of a job.
pub const LABELS_MAX: usize = 64;
/// Devices of one session.
pub const DEVICES_MAX: usize = 64;
/// The fewest chunks between two regular keyframes: 4 × 64k events are replayed in about 10 ms, and a keyframe is small
/// in comparison.
pub const KEYFRAME_CHUNKS: u64 = 4;

/// Points of a timeline, per rank: more than any screen has columns.
pub const TIMELINE_POINTS_MAX: u32 = 10_000;

/// Whether a job's name can be typed, printed and used in a path: letters, digits and `._:@/+-`, at most
/// [`LABEL_BYTES_MAX`] bytes, not beginning with `-`. No part between slashes is empty, `.` or `..`, so that the path
/// stays below its folder. `latest` means the newest job and is not a valid name.
#[must_use]
pub fn is_job_name(name: &str) -> bool {
    name != "latest"
        && name.len() <= LABEL_BYTES_MAX
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@/+-".contains(&b))
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Jobs in a list, newest first, if the request has no number.
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
