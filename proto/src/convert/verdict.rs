//! Verdicts on the wire. They are received for display, so a kind of a newer version is shown unchanged.

use memctl_model::{Cause, MemoryKind, Verdict};

use crate::v1;

impl From<&Verdict> for v1::Verdict {
    fn from(verdict: &Verdict) -> Self {
        let Verdict {
            kind,
            cause,
            memory,
            grown_bytes,
            seconds,
            site,
            ranks,
            processes,
            bound_bytes,
            fits,
            holder,
            swing_bytes,
            sentence,
        } = verdict;
        Self {
            kind: kind.name().to_owned(),
            cause: cause.map_or_else(String::new, |cause: Cause| cause.name().to_owned()),
            memory: memory.map_or_else(String::new, |memory: MemoryKind| memory.name().to_owned()),
            grown_bytes: *grown_bytes,
            seconds: *seconds,
            site: site.as_ref().map(Into::into),
            ranks: ranks.clone(),
            processes: processes.clone(),
            bound_bytes: *bound_bytes,
            fits: *fits,
            holder: holder.clone().unwrap_or_default(),
            sentence: sentence.clone(),
            lowest_bytes: swing_bytes.map(|(lowest, _)| lowest),
            highest_bytes: swing_bytes.map(|(_, highest)| highest),
        }
    }
}
