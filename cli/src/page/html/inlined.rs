//! The data of a report's views, in the report's own file: the responses that the page would request from a daemon, in
//! compressed form.
//!
//! Guarantees: the data never exceeds the available room. If a response did not fit, this is reported. Responses are
//! base64 text, so neither they nor their keys can end an HTML element.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::policy::base64;

/// Maximum number of characters of a reason.
const REASON_MAX: usize = 300;

/// The responses, and the page's settings.
#[derive(Debug, Default, Serialize)]
pub struct Inlined {
    /// The job.
    pub job: String,
    /// The attempt of the job.
    pub attempt: u32,
    /// The version of memctl.
    pub version: &'static str,
    /// The time of writing.
    pub written_at: String,
    /// The rank of the verdict.
    pub rank: Option<u32>,
    /// The epochs at whose ends the rank is compared.
    pub early: Option<u32>,
    /// The later of these epochs; see `early`.
    pub late: Option<u32>,
    /// The size that the job was recorded at, if it was given.
    pub size: Option<u64>,
    /// Bytes that the process may reserve, for the forecast of other sizes.
    pub device_memory: Option<u64>,
    /// What was left out, in sentences.
    pub left_out: Vec<String>,
    answers: BTreeMap<String, String>,
    reasons: BTreeMap<String, String>,
    #[serde(skip)]
    room: usize,
}

impl Inlined {
    /// An empty set that may use this many bytes.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { room, version: env!("CARGO_PKG_VERSION"), ..Self::default() }
    }

    /// Whether the set has a response for a request, or a reason why there is none.
    #[must_use]
    pub fn knows(&self, key: &str) -> bool {
        self.answers.contains_key(key) || self.reasons.contains_key(key)
    }

    /// Adds a response; `false` if it does not fit.
    pub fn take(&mut self, key: &str, content: &[u8]) -> bool {
        let mut packing = GzEncoder::new(Vec::new(), Compression::best());
        let packed = packing.write_all(content).and_then(|()| packing.finish());
        let Ok(packed) = packed.map(|bytes| base64(&bytes)) else { return false };
        self.keep(key, &packed).then(|| self.answers.insert(key.to_owned(), packed)).is_some()
    }

    /// Records why a request has no response.
    pub fn refuse(&mut self, key: &str, reason: &str) {
        let reason: String = reason.chars().take(REASON_MAX).collect();
        if self.keep(key, &reason) {
            self.reasons.insert(key.to_owned(), reason);
        }
    }

    fn keep(&mut self, key: &str, text: &str) -> bool {
        // In JSON a response also takes quotation marks, a comma and a colon.
        let length = text_of(&(key, text)).len() + key.len();
        let fits = length <= self.room;
        self.room -= if fits { length } else { 0 };
        fits
    }

    /// The element of the file.
    #[must_use]
    pub fn element(&self) -> String {
        format!("<script type=\"application/json\" id=\"report\">{}</script>\n", text_of(self))
    }
}

/// JSON that cannot open or close an HTML element.
fn text_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_not_taken_and_nothing_ends_the_element() {
        let mut inlined = Inlined::new(400);
        inlined.job = "</script><script>".into();
        assert!(inlined.take("query", b"{}"));
        let noise: Vec<u8> = (0..4000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        assert!(!inlined.take("blocks", &noise));
        inlined.refuse("</script>", "<!-- gone");
        assert!(inlined.knows("query") && inlined.knows("</script>") && !inlined.knows("blocks"));
        let element = inlined.element();
        assert_eq!(element.matches('<').count(), 2, "{element}");
        let json = element.split_once('>').unwrap().1.split('<').next().unwrap();
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&read["job"], &read["reasons"]["</script>"]), (&"</script><script>".into(), &"<!-- gone".into()));
        assert_eq!(&read["answers"]["query"].as_str().unwrap()[..4], "H4sI");
    }
}
