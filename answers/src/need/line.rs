//! The answer as one line of `key=value` pairs, for accounting logs.
//!
//! Guarantees: the keys and their order are fixed; later keys follow at the end. A value that is not known is `-`. A
//! text with anything but letters, digits and `._:@/+#-` is written as a JSON string, so the line splits at spaces
//! outside quotes.

use std::fmt::Display;

use memctl_model::scheduler::SLURM_JOB_LABEL;

use super::{Fit, Need, Size};
use crate::format::json;

/// What is not known.
const UNKNOWN: &str = "-";

/// A text as a value.
fn text(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@/+#-".contains(&byte);
    match value.bytes().all(is_plain) && !value.is_empty() && value != UNKNOWN {
        true => value.to_owned(),
        false => json::text(value),
    }
}

fn maybe(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// The name of a size without a space: `16GB`.
fn size(size: Option<&Size>) -> String {
    size.map_or_else(|| UNKNOWN.to_owned(), |size| size.name.replace(' ', ""))
}

impl Need {
    /// The line, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        let job = &self.job;
        let highest = self.highest();
        let of = |figure: fn(&super::Device) -> Option<u64>| maybe(highest.and_then(figure));
        let host = self.hosts.iter().max_by_key(|host| host.highest_bytes);
        let fits = |outcome: Fit| self.sizes.iter().find(|size| size.outcome == outcome);
        let fails = self.sizes.iter().rev().find(|size| size.outcome == Fit::Fails);
        let ooms: u64 = self.devices.iter().map(|device| device.ooms).fold(0, u64::saturating_add);
        let pairs = [
            ("job", text(&job.name)),
            ("run", maybe(job.run)),
            ("attempt", job.attempt.to_string()),
            ("state", job.state.name().to_owned()),
            ("slurm_job", job.labels.get(SLURM_JOB_LABEL).map_or_else(|| UNKNOWN.to_owned(), |id| text(id))),
            ("exact", self.completeness.exact.to_string()),
            ("ranks", job.ranks.to_string()),
            ("seconds", maybe(self.seconds.map(|seconds| seconds.round() as u64))),
            ("rank", maybe(highest.map(|device| device.rank))),
            ("needed_bytes", of(|device| device.needed_bytes)),
            ("reserved_bytes", of(|device| device.peak_reserved_bytes)),
            ("allocated_bytes", of(|device| device.peak_allocated_bytes)),
            ("outside_bytes", of(|device| device.outside_bytes)),
            ("assumed_outside_bytes", of(|device| device.assumed_outside_bytes)),
            ("device_total_bytes", of(|device| device.device_total_bytes)),
            ("unused_bytes", of(|device| device.unused_bytes)),
            ("unused_gib_hours", maybe(self.unused_gib_hours.map(|hours| format!("{hours:.3}")))),
            ("fits", size(fits(Fit::Fits))),
            ("fits_after_retries", size(fits(Fit::FitsAfterRetries))),
            ("fails", size(fails)),
            ("ooms", ooms.to_string()),
            ("host_bytes", maybe(host.and_then(|host| host.highest_bytes))),
            ("host_asked_bytes", maybe(host.and_then(|host| host.asked_bytes))),
            ("devices_on_host", maybe(host.map(|host| host.devices))),
            ("devices_asked", maybe(host.and_then(|host| host.devices_asked))),
        ];
        pairs.map(|(key, value)| format!("{key}={value}")).join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_a_reader_would_split_them() {
        assert_eq!(text("gpt2#3"), "gpt2#3");
        assert_eq!(text("my job"), "\"my job\"");
        assert_eq!((text(""), text("-")), ("\"\"".to_owned(), "\"-\"".to_owned()));
        assert_eq!(text("a=\"b\"\n\u{9b}"), r#""a=\"b\"\n\u009b""#);
        assert_eq!(size(Some(&Size { name: "16 GB".into(), ..Size::default() })), "16GB");
    }
}
