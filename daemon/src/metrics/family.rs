//! Metrics and their values at one moment, independent of the output format. `/metrics` and OTLP both use them.
//!
//! Guarantees: a family has the labels of its definition, in that order, and no others.

use crate::histogram::Distribution;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value goes up and down.
    Gauge,
    /// The value only goes up, until the daemon restarts.
    Counter,
    /// A distribution of values.
    Histogram,
}

impl Kind {
    /// The name in the exposition format and the documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// The fixed part of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name, with its unit.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in one sentence.
    pub help: &'static str,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The value of a gauge or a counter.
    Number(f64),
    /// The value of a histogram.
    Histogram(Distribution),
}

/// One series at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The labels' values, in the order of the definition.
    pub labels: Vec<String>,
    /// The figure.
    pub value: Value,
}

/// A metric with its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The metric.
    pub definition: &'static Definition,
    /// Its series.
    pub points: Vec<Point>,
}

impl Family {
    /// A metric without series.
    #[must_use]
    pub fn new(definition: &'static Definition) -> Self {
        Self { definition, points: Vec::new() }
    }

    /// A metric without labels.
    #[must_use]
    pub fn single(definition: &'static Definition, value: f64) -> Self {
        let mut family = Self::new(definition);
        family.add(&[], value);
        family
    }

    /// Adds a series. `labels` must be in the order of the definition.
    pub fn add(&mut self, labels: &[&str], value: f64) {
        debug_assert_eq!(labels.len(), self.definition.labels.len(), "{}", self.definition.name);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.points.push(Point { labels, value: Value::Number(value) });
    }
}
