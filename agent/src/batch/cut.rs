//! Cuts texts to the lengths that the wire format allows.
//!
//! Guarantees: a cut text ends at a character's boundary.

use memctl_model::MarkKind;
use memctl_model::limits::NAME_BYTES_MAX;

/// Cuts a mark's name to the length that the wire format allows.
#[must_use]
pub fn cut(kind: MarkKind) -> MarkKind {
    match kind {
        MarkKind::RegionBegin(name) => MarkKind::RegionBegin(cut_text(name, NAME_BYTES_MAX)),
        MarkKind::RegionEnd(name) => MarkKind::RegionEnd(cut_text(name, NAME_BYTES_MAX)),
        MarkKind::Note(name) => MarkKind::Note(cut_text(name, NAME_BYTES_MAX)),
        other => other,
    }
}

pub(crate) fn cut_text(mut text: String, bytes_max: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes_max));
    text
}
