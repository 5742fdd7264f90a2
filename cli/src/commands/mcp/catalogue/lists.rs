//! The lists of each tool's answer: which are shortened, in which order, and in which one a caller reads on.
//!
//! Guarantees: the list in which a caller reads on is one of those that are shortened.

use super::Tool;

impl Tool {
    /// The lists of its answer, in the order in which they are shortened if the answer is too large. `*` stands for
    /// every row.
    #[must_use]
    pub const fn lists(self) -> &'static [&'static str] {
        match self {
            Self::Jobs => &["jobs"],
            Self::Verdict => &[
                "ranks/*/epoch_ends",
                "growth/*/stack",
                "growth",
                "processes",
                "findings/*/site/stack",
                "ranks",
                "findings",
            ],
            Self::Leaks => &["findings/*/site/stack", "findings/*/holders/holders", "findings"],
            Self::Diagnose => &["replay/device/settings", "findings/*/site/stack", "usage/by", "findings"],
            Self::Ranks => &["findings/*/site/stack", "findings", "ranks"],
            Self::Sites => &["ranks/*/sites/*/births", "ranks/*/sites/*/stack", "ranks/*/sites", "ranks"],
            Self::Timeline => &["ranks/*/marks", "ranks/*/floor", "ranks", "ranks/*/points"],
            Self::Ledger => &["ranks/*/owners", "ranks/*/pools", "ranks"],
            Self::Frag => &[
                "replay/device/settings",
                "ranks/*/unusable_free",
                "ranks/*/held_by/*/stack",
                "ranks/*/free_lists",
                "ranks",
                "ranks/*/held_by",
                "findings",
            ],
            Self::Oom => &[
                "failures/*/sites/*/stack",
                "failures/*/held_by/*/stack",
                "failures/*/stack",
                "failures",
                "replay/device/settings",
                "failures/*/sites",
                "failures/*/held_by",
                "findings",
            ],
            Self::WhatIf => &["ranks/*/settings", "ranks"],
            Self::Fit => {
                &["peak/modules", "peak/sites", "peak/classes", "under/must_go", "under/measures", "growing", "at"]
            }
            Self::Diff => &["modules", "classes", "growth", "sites", "new_findings"],
            Self::Holders | Self::SearchHolders => {
                &["findings/*/holders/holders", "holders/*/chain", "holders", "findings"]
            }
            Self::Explain => &["finding/site/stack", "meanings"],
        }
    }

    /// The list that `skip` reads on in, if the tool has that parameter.
    #[must_use]
    pub const fn rows(self) -> Option<&'static str> {
        match self {
            Self::Jobs => Some("jobs"),
            Self::Verdict | Self::Leaks | Self::Diagnose | Self::Holders => Some("findings"),
            Self::Ranks | Self::Timeline | Self::Ledger | Self::Frag => Some("ranks"),
            // (Of each rank.)
            Self::Sites => Some("ranks/*/sites"),
            Self::Oom => Some("failures"),
            Self::WhatIf | Self::Fit | Self::Diff | Self::SearchHolders | Self::Explain => None,
        }
    }
}
