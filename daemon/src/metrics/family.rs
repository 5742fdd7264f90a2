//! What a metric is, and one moment's figures of it: neutral, so that the text of `/metrics` and OTLP are made of the same.
//!
//! Guarantees: a family has the labels of its definition, in that order, and no others.

use crate::histogram::Distribution;

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up, until the daemon starts anew.
    Counter,
    /// How values are distributed.
    Histogram,
}

impl Kind {
    /// As the exposition format and the documentation have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric: what never changes about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it counts.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means, in one sentence.
    pub help: &'static str,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A gauge's or a counter's.
    Number(f64),
    /// A histogram's.
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
    /// Which metric.
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

    /// Adds a series; labels in the order of the definition.
    pub fn add(&mut self, labels: &[&str], value: f64) {
        debug_assert_eq!(labels.len(), self.definition.labels.len(), "{}", self.definition.name);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.points.push(Point { labels, value: Value::Number(value) });
    }
}
