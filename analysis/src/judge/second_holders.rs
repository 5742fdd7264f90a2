//! Holders that are named beside the main one.

use memctl_model::{EvidenceValue, Finding, TensorHolder};

/// Holders that are named beside the main one.
pub(super) fn beside(finding: &Finding) -> Vec<&TensorHolder> {
    let constant = finding.evidence.iter().find_map(|(name, value)| match value {
        EvidenceValue::Count(bytes) if name == BESIDE_BYTES => Some(*bytes),
        _ => None,
    });
    finding.holders_beside(constant.unwrap_or(0))
}

/// The evidence of the bytes of a place that do not grow.
pub(super) const BESIDE_BYTES: &str = "beside_bytes";
