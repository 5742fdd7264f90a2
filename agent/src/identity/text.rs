//! Reads and cleans the text that launchers leave behind: numbers, names, dates.
//!
//! Guarantees: a number that does not parse is a complaint, not a failure; a cleaned name is one that the wire accepts.

use memctl_model::limits::{LABEL_BYTES_MAX, is_job_name};

use super::{Complaints, Environment};

/// A variable that is there and not blank.
pub(super) fn set(environment: Environment<'_>, name: &str) -> Option<String> {
    environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// A variable that holds a number not above `most`; anything else is complained about.
pub(super) fn number(environment: Environment<'_>, name: &str, most: u32, complaints: &mut Complaints) -> Option<u32> {
    let value = set(environment, name)?;
    let parsed = value.parse::<u32>().ok().filter(|&value| value <= most);
    if parsed.is_none() {
        complaints.add(|| format!("{name}={:?} is ignored: a number of 0 to {most} was expected", cut(&value, 64)));
    }
    parsed
}

/// The longest beginning of `text` of at most `bytes` bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes.min(text.len()))]
}

/// `name` as a job's name: what the wire refuses becomes `-`, runs of it one; `None` when nothing is left.
pub(super) fn cleaned(name: &str) -> Option<String> {
    if is_job_name(name) {
        return Some(name.to_owned());
    }
    let mut clean = String::with_capacity(name.len().min(LABEL_BYTES_MAX));
    for c in name.trim().chars() {
        let kept = if c.is_ascii_alphanumeric() || "._:@/+-".contains(c) { c } else { '-' };
        if kept != '-' || !(clean.is_empty() || clean.ends_with('-')) {
            clean.push(kept);
        }
        if clean.len() == LABEL_BYTES_MAX {
            break;
        }
    }
    // What would lead elsewhere in a path is left out.
    let parts: Vec<&str> = clean.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
    let clean = parts.join("/");
    let clean = clean.trim_start_matches('-').trim_end_matches(['-', '/']);
    is_job_name(clean).then(|| clean.to_owned())
}

/// The day in UTC and the second of it, `("20250601", "142233")`, of a time in nanoseconds since the Unix epoch.
pub(super) fn day_and_time(time_ns: u64) -> (String, String) {
    let seconds = time_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counting years from 1 March puts the leap day last; an era of 400 years has 146,097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (format!("{year:04}{month:02}{day:02}"), format!("{:02}{:02}{:02}", second / 3_600, second / 60 % 60, second % 60))
}
