//! What was analysed and what was not, on the wire. It is received for display, so a kind of a newer version is shown
//! unchanged.

use memctl_model::{Judged, JudgedKind, NotJudged};

use crate::v1;

impl From<&Judged> for v1::Judged {
    fn from(judged: &Judged) -> Self {
        let Judged { processes, ranks, epoch_ends, steps, windows, kinds } = judged;
        Self {
            processes: *processes,
            ranks: ranks.clone(),
            epoch_ends: *epoch_ends,
            steps: *steps,
            windows: *windows,
            kinds: kinds.iter().map(Into::into).collect(),
        }
    }
}

impl From<&JudgedKind> for v1::JudgedKind {
    fn from(JudgedKind { kind, boundaries }: &JudgedKind) -> Self {
        // A boundary has the same number on the wire.
        Self { kind: kind.name().to_owned(), boundaries: boundaries.iter().map(|boundary| *boundary as i32).collect() }
    }
}

impl From<&NotJudged> for v1::NotJudged {
    fn from(not: &NotJudged) -> Self {
        let NotJudged { kind, gap, reason, remedy } = not;
        Self {
            kind: kind.name().to_owned(),
            gap: gap.name().to_owned(),
            reason: reason.clone(),
            remedy: remedy.clone(),
            decides: not.decides(),
        }
    }
}
