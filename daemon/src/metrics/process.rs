//! Builds the series of the daemon's process: the standard metrics of Prometheus clients.
//!
//! Guarantees: a value that the system does not provide is left out, never reported as 0.

use super::definitions::{CPU, FILES, FILES_MAX, RESIDENT, STARTED, VIRTUAL};
use super::family::Family;

/// The rate of the clock ticks in which `/proc` counts time, on every architecture that memctl is built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// The families of the process. `started_ns` is the time of its start, which a hardened service cannot read from
/// `/proc`.
#[must_use]
pub fn families(started_ns: u64) -> Vec<Family> {
    let mut families = Vec::new();
    let mut tell = |definition, value: Option<f64>| {
        families.extend(value.map(|value| Family::single(definition, value)));
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = |number| field(&stat, number);
    tell(&CPU, field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND));
    tell(&VIRTUAL, field(23));
    tell(&RESIDENT, resident());
    tell(&STARTED, Some(started_ns as f64 / 1e9));
    tell(&FILES, std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64));
    tell(&FILES_MAX, rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map(|most| most as f64));
    families
}

/// A field of `/proc/self/stat` by its number in proc(5), from 3 on. The second field, the program's name, may contain
/// any text.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(number - 3)?.parse().ok()
}

fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_told_whatever_it_is_called() {
        assert_eq!(field("7 (a) b) S 1 2 3", 3), None, "a state is no number");
        assert_eq!(field("7 (a) b) S 1 2 3", 4), Some(1.0));
        let families = families(5_000_000_000);
        assert_eq!(families.len(), 6);
        let value = |name: &str| {
            let family = families.iter().find(|family| family.definition.name == name).unwrap();
            match &family.points[0].value {
                super::super::family::Value::Number(value) => *value,
                other => panic!("{other:?}"),
            }
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert_eq!(value("process_start_time_seconds"), 5.0);
    }
}
