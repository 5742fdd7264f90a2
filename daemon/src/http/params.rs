//! The query parameters of an address. They have the same names as the flags of the command line.
//!
//! Guarantees: the parameters are bounded by the size of a request's head. An unknown or repeated name, or an invalid
//! value, is refused, and the error lists the valid ones. Nothing is guessed.

use jiff::Timestamp;
use memctl_proto::v1;
use tonic::codegen::http::Uri;

use crate::query::WhichStep;
use crate::url_text;

/// Names that every request accepts in addition to its own.
const COMMON: [&str; 7] = ["attempt", "rank", "process", "device", "since", "until", "tenant"];

/// The decoded pairs of a query string.
#[derive(Debug)]
pub struct Params(Vec<(String, String)>);

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When allocated bytes were highest.
    Peak,
    /// The end of the recording.
    End,
    /// The end of an epoch.
    EpochEnd(u32),
    /// The end of an epoch's first or last step.
    StepEnd(u32, WhichStep),
    /// A time.
    At(u64),
}

impl Params {
    /// The parameters of an address.
    ///
    /// # Errors
    /// A text is wrongly encoded, or a name occurs twice.
    pub fn of(uri: &Uri) -> Result<Self, String> {
        Self::decode(uri.query().unwrap_or_default())
    }

    /// The parameters of a query string.
    ///
    /// # Errors
    /// A text is wrongly encoded, or a name occurs twice.
    pub fn decode(query: &str) -> Result<Self, String> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(format!("{} occurs twice in the address; give it once", name.escape_debug()));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// Checks that there are only parameters of this request.
    ///
    /// # Errors
    /// The first unknown name, with a list of the valid names.
    pub fn takes(&self, own: &[&str]) -> Result<(), String> {
        let unknown = self.0.iter().find(|(name, _)| !own.contains(&name.as_str()) && !COMMON.contains(&name.as_str()));
        match unknown {
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "unknown parameter {}; expected one of {}",
                name.escape_debug(),
                [own, &COMMON].concat().join(", ")
            )),
        }
    }

    /// A value as text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// A value as a number.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn number(&self, name: &str) -> Result<Option<u32>, String> {
        self.text(name).map(|text| whole(name, text)).transpose()
    }

    /// A value as a number that may be large.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn large(&self, name: &str) -> Result<Option<u64>, String> {
        self.text(name).map(|text| whole(name, text)).transpose()
    }

    /// A value as a flag.
    ///
    /// # Errors
    /// The value is neither `true` nor `false`.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(format!("{name}={}: expected true or false", other.escape_debug())),
        }
    }

    fn numbers(&self, name: &str) -> Result<Vec<u32>, String> {
        self.text(name).map_or(Ok(Vec::new()), |text| text.split(',').map(|part| whole(name, part)).collect())
    }

    /// The selected part of a job.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn selection(&self, job: &str) -> Result<v1::Selection, String> {
        if job.is_empty() {
            return Err("a job has a name, or `latest`".to_owned());
        }
        let processes = self.text("process").map_or_else(Vec::new, |text| text.split(',').map(str::to_owned).collect());
        Ok(v1::Selection {
            job: job.to_owned(),
            attempt: self.number("attempt")?,
            ranks: self.numbers("rank")?,
            processes,
            devices: self.numbers("device")?,
            since_ns: self.time("since")?,
            until_ns: self.time("until")?,
            ..v1::Selection::default()
        })
    }

    /// The conditions and the comment of a silence.
    ///
    /// # Errors
    /// The ranks are not numbers.
    pub fn silence(&self) -> Result<v1::Silence, String> {
        let text = |name| self.text(name).unwrap_or_default().to_owned();
        Ok(v1::Silence {
            job: text("job"),
            kind: text("kind"),
            rule: text("rule"),
            ranks: self.numbers("rank")?,
            comment: text("comment"),
            ..v1::Silence::default()
        })
    }

    fn time(&self, name: &str) -> Result<Option<u64>, String> {
        self.text(name).map(|text| time(name, text)).transpose()
    }

    /// A value as a moment.
    ///
    /// # Errors
    /// The value is not a moment.
    pub fn moment(&self, name: &str) -> Result<Option<Moment>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let moment = match text {
            "peak" => Moment::Peak,
            "end" => Moment::End,
            text => match text.strip_prefix("epoch:").map(|epoch| epoch.split_once(':').unwrap_or((epoch, ""))) {
                Some((epoch, "")) => Moment::EpochEnd(whole(name, epoch)?),
                Some((epoch, "first-step")) => Moment::StepEnd(whole(name, epoch)?, WhichStep::First),
                Some((epoch, "last-step")) => Moment::StepEnd(whole(name, epoch)?, WhichStep::Last),
                _ => Moment::At(time(name, text)?),
            },
        };
        Ok(Some(moment))
    }
}

fn whole<N: std::str::FromStr>(name: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{name}={}: expected whole numbers", text.escape_debug()))
}

fn time(name: &str, text: &str) -> Result<u64, String> {
    let time = text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_nanosecond()).ok());
    time.ok_or_else(|| {
        format!(
            "{name}={}: expected a time such as 2026-01-31T12:00:00Z; a moment may also be peak, end or epoch:N (of its first or last step epoch:N:first-step, epoch:N:last-step)",
            text.escape_debug()
        )
    })
}

/// Decodes text of an address, where `+` is a space.
fn decoded(text: &str) -> Result<String, String> {
    let wrong = || format!("{} is not encoded as an address has it (%XX, UTF-8)", text.escape_debug());
    url_text::decoded(&text.replace('+', " ")).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Params, String> {
        Params::of(&format!("/x?{query}").parse().unwrap())
    }

    #[test]
    fn a_selection_is_what_the_flags_would_make() {
        let asked = asked("rank=0,3&attempt=2&process=a%20b,c&device=1&since=1970-01-01T00:00:01Z&at=epoch:7&tenant=t")
            .unwrap();
        let expected = v1::Selection {
            job: "j".into(),
            attempt: Some(2),
            ranks: vec![0, 3],
            processes: vec!["a b".into(), "c".into()],
            devices: vec![1],
            since_ns: Some(1_000_000_000),
            ..v1::Selection::default()
        };
        assert_eq!(asked.selection("j").unwrap(), expected);
        assert_eq!(asked.moment("at").unwrap(), Some(Moment::EpochEnd(7)));
        asked.takes(&["at"]).unwrap();
        assert!(asked.takes(&["points"]).unwrap_err().contains("points, attempt"));
        assert!(asked.selection("").is_err());
    }

    #[test]
    fn what_is_none_is_named() {
        for (query, why) in [("a=1&a=2", "twice"), ("a=%zz", "encoded"), ("a=%ff", "encoded"), ("a=%f", "encoded")] {
            assert!(asked(query).unwrap_err().contains(why), "{query}");
        }
        for query in ["rank=-1", "rank=1,,2", "rank=4294967296", "attempt=x", "since=yesterday", "until=-1"] {
            assert!(asked(query).unwrap().selection("j").is_err(), "{query}");
        }
        for (text, moment) in
            [("peak", Moment::Peak), ("end", Moment::End), ("1970-01-01T00:00:00.000000007Z", Moment::At(7))]
        {
            assert_eq!(asked(&format!("at={text}")).unwrap().moment("at").unwrap(), Some(moment));
        }
        let step = |text: &str| asked(&format!("at={text}")).unwrap().moment("at");
        assert_eq!(step("epoch:3:last-step"), Ok(Some(Moment::StepEnd(3, WhichStep::Last))));
        assert!(step("epoch:3:next-step").is_err());
        assert!(asked("at=epoch:-1").unwrap().moment("at").is_err());
        assert!(asked("blocks=maybe").unwrap().flag("blocks").is_err());
    }
}
