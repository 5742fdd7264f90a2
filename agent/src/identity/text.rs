//! Reads and cleans numbers and names that launchers put into the environment.
//!
//! Guarantees: a number that does not parse is a complaint, not a failure. The wire accepts a cleaned name.

use memctl_model::limits::{LABEL_BYTES_MAX, is_job_name};

use super::{Complaints, Environment};

/// SLURM's special steps (batch, extern, interactive) have numbers from here on.
pub(super) const SPECIAL_STEPS: u32 = 0xffff_fff0;

/// The value of a variable that is set and not blank.
pub(super) fn value_of(environment: Environment<'_>, name: &str) -> Option<String> {
    environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The value of a variable with a number of at most `most`. Any other value is a complaint.
pub(super) fn number(environment: Environment<'_>, name: &str, most: u32, complaints: &mut Complaints) -> Option<u32> {
    let value = value_of(environment, name)?;
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

/// `name` as a valid job's name. Each run of characters that the wire refuses becomes one `-`. `None` when nothing is
/// left.
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
    // Parts that would lead elsewhere in a path are removed.
    let parts: Vec<&str> = clean.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
    let clean = parts.join("/");
    let clean = clean.trim_start_matches('-').trim_end_matches(['-', '/']);
    is_job_name(clean).then(|| clean.to_owned())
}
