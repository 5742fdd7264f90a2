//! Renders metrics as text for Prometheus, in version 0.0.4 of its exposition format.
//!
//! Guarantees: a label with any content is one value on one line. Parsing a written number gives exactly the same
//! number. A metric without series is left out.

use std::fmt::Write as _;

use super::family::{Family, Point, Value};
use crate::histogram::Distribution;

/// The content type of the response.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders families.
#[must_use]
pub fn render(families: &[Family]) -> String {
    let mut text = String::with_capacity(families.iter().map(|family| 160 + family.points.len() * 120).sum());
    for family in families.iter().filter(|family| !family.points.is_empty()) {
        let definition = family.definition;
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {} {}", definition.name, help(definition.help));
        let _ = writeln!(text, "# TYPE {} {}", definition.name, definition.kind.name());
        for point in &family.points {
            match &point.value {
                Value::Number(value) => {
                    line(&mut text, definition.name, "", &labels(definition.labels, point, None), *value);
                }
                Value::Histogram(distribution) => {
                    histogram(&mut text, definition.name, definition.labels, point, distribution);
                }
            }
        }
    }
    text
}

fn histogram(text: &mut String, name: &str, names: &[&str], point: &Point, distribution: &Distribution) {
    let mut below = 0;
    let bounds = distribution.bounds.iter().copied().chain([f64::INFINITY]);
    for (bound, count) in bounds.zip(&distribution.counts) {
        below += count;
        line(text, name, "_bucket", &labels(names, point, Some(bound)), below as f64);
    }
    line(text, name, "_sum", &labels(names, point, None), distribution.sum);
    line(text, name, "_count", &labels(names, point, None), below as f64);
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &str, value: f64) {
    let _ = writeln!(text, "{name}{suffix}{labels} {}", number(value));
}

fn labels(names: &[&str], point: &Point, bound: Option<f64>) -> String {
    let own = names.iter().zip(&point.labels).map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    let all: Vec<String> = own.chain(bound.map(|bound| format!("le=\"{}\"", number(bound)))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

/// Escapes a label's value: backslash, quote and line break.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn help(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        (if value > 0.0 { "+Inf" } else { "-Inf" }).to_owned()
    } else {
        // Rust writes the shortest decimal that parses to the same number, never an exponent.
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::{Definition, Kind};
    use super::*;

    static NAMED: Definition =
        Definition { name: "memctl_x_bytes", kind: Kind::Gauge, labels: &["job", "host"], help: "A \\ b\nc." };
    static TIMES: Definition =
        Definition { name: "memctl_t_seconds", kind: Kind::Histogram, labels: &[], help: "Times." };
    static NONE: Definition = Definition { name: "memctl_none", kind: Kind::Gauge, labels: &[], help: "Nothing." };

    #[test]
    fn hostile_labels_stay_one_value_on_one_line_and_numbers_stay_exact() {
        let mut family = Family::new(&NAMED);
        family.add(&["a\"} 1\nx{y=\"", "h\\\r\u{202e}é"], 1.5e18);
        family.add(&["j", ""], f64::NAN);
        let text = render(&[family, Family::new(&NONE)]);
        let expected = "# HELP memctl_x_bytes A \\\\ b\\nc.\n# TYPE memctl_x_bytes gauge\n\
             memctl_x_bytes{job=\"a\\\"} 1\\nx{y=\\\"\",host=\"h\\\\\r\u{202e}é\"} 1500000000000000000\n\
             memctl_x_bytes{job=\"j\",host=\"\"} NaN\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn buckets_are_cumulative_and_end_in_infinity() {
        let distribution = Distribution { bounds: &[0.25, 1.0], counts: vec![2, 0, 3], sum: 12.5 };
        let point = Point { labels: Vec::new(), value: Value::Histogram(distribution) };
        let text = render(&[Family { definition: &TIMES, points: vec![point] }]);
        let expected = "# HELP memctl_t_seconds Times.\n# TYPE memctl_t_seconds histogram\n\
             memctl_t_seconds_bucket{le=\"0.25\"} 2\nmemctl_t_seconds_bucket{le=\"1\"} 2\n\
             memctl_t_seconds_bucket{le=\"+Inf\"} 5\nmemctl_t_seconds_sum 12.5\nmemctl_t_seconds_count 5\n";
        assert_eq!(text, expected);
    }
}
