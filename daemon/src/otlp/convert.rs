//! Converts families to OTLP messages.
//!
//! Guarantees: names, labels and values are those of `/metrics`; units are in UCUM notation. A message stays below the
//! 4 MiB that receivers accept, regardless of its labels. Counters are cumulative and have a start time, except those
//! of jobs, which may be older than the daemon.

use memctl_proto::otlp::opentelemetry::proto::collector::metrics::v1::ExportMetricsServiceRequest;
use memctl_proto::otlp::opentelemetry::proto::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use memctl_proto::otlp::opentelemetry::proto::metrics::v1::metric::Data;
use memctl_proto::otlp::opentelemetry::proto::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, number_data_point,
};
use memctl_proto::otlp::opentelemetry::proto::resource::v1::Resource;

use crate::metrics::Family;
use crate::metrics::family::{Definition, Kind, Point, Value};

/// The largest message, by an upper estimate. It is half of the size that receivers accept.
pub(super) const BYTES_MAX: usize = 2 << 20;
/// Overhead in bytes of a point without its labels, and of a label without its text.
const POINT_BYTES: usize = 64;
const LABEL_BYTES: usize = 16;

/// The time of the values, and the time since which the daemon counts, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) taken_ns: u64,
    pub(super) started_ns: u64,
}

/// The messages that contain these families.
pub(super) fn requests(
    families: &[Family],
    resource: &[(String, String)],
    times: Times,
) -> Vec<ExportMetricsServiceRequest> {
    let mut messages = vec![Vec::new()];
    let mut room = BYTES_MAX;
    for family in families {
        let mut points = family.points.as_slice();
        while !points.is_empty() {
            let (count, bytes) = fitting(family.definition, points, room);
            if count == 0 && room < BYTES_MAX {
                messages.push(Vec::new());
                room = BYTES_MAX;
                continue;
            }
            let (now, later) = points.split_at(count.max(1));
            if let Some(message) = messages.last_mut() {
                message.push(metric(family.definition, now, times));
            }
            room = room.saturating_sub(bytes.max(1));
            points = later;
        }
    }
    messages.into_iter().filter(|metrics| !metrics.is_empty()).map(|metrics| request(metrics, resource)).collect()
}

/// The number of points, from the first on, that fit; and their size.
fn fitting(definition: &Definition, points: &[Point], room: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, POINT_BYTES + definition.name.len() + definition.help.len());
    for point in points {
        let parts = match &point.value {
            Value::Number(_) => 0,
            Value::Histogram(distribution) => distribution.counts.len() * 16,
        };
        let labels =
            definition.labels.iter().zip(&point.labels).map(|(key, value)| key.len() + value.len() + LABEL_BYTES);
        let taken = bytes + POINT_BYTES + parts + labels.sum::<usize>();
        if taken > room {
            break;
        }
        (count, bytes) = (count + 1, taken);
    }
    (count, bytes)
}

fn request(metrics: Vec<Metric>, resource: &[(String, String)]) -> ExportMetricsServiceRequest {
    let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let (name, version) = ("memctl".into(), env!("CARGO_PKG_VERSION").into());
    let scope = Some(InstrumentationScope { name, version, ..InstrumentationScope::default() });
    let scope_metrics = vec![ScopeMetrics { scope, metrics, ..ScopeMetrics::default() }];
    let resource = Some(Resource { attributes, ..Resource::default() });
    let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.into())) };
    KeyValue { key: key.into(), value: Some(value), ..KeyValue::default() }
}

fn metric(definition: &Definition, points: &[Point], times: Times) -> Metric {
    let numbers = || points.iter().filter_map(|point| number(definition, point, times)).collect();
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let data = match definition.kind {
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers() }),
        Kind::Counter => Data::Sum(Sum { data_points: numbers(), aggregation_temporality, is_monotonic: true }),
        Kind::Histogram => {
            let data_points = points.iter().filter_map(|point| distribution(definition, point, times)).collect();
            Data::Histogram(Histogram { data_points, aggregation_temporality })
        }
    };
    let (name, description) = (definition.name.into(), definition.help.into());
    Metric { name, description, unit: unit(definition.name).into(), data: Some(data), ..Metric::default() }
}

/// The unit at the end of a name, in UCUM notation.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        _ if name.ends_with("_bytes_per_epoch") => "By/{epoch}",
        Some("bytes") => "By",
        Some("seconds") => "s",
        Some("ratio") => "1",
        _ => "",
    }
}

/// The start time of a series; 0 means unknown.
fn since(definition: &Definition, times: Times) -> u64 {
    match definition.kind {
        Kind::Gauge => 0,
        Kind::Counter | Kind::Histogram if definition.labels.contains(&"job") => 0,
        Kind::Counter | Kind::Histogram => times.started_ns,
    }
}

fn attributes(definition: &Definition, point: &Point) -> Vec<KeyValue> {
    definition.labels.iter().zip(&point.labels).map(|(key, value)| attribute(key, value)).collect()
}

fn number(definition: &Definition, point: &Point, times: Times) -> Option<NumberDataPoint> {
    let Value::Number(value) = point.value else { return None };
    Some(NumberDataPoint {
        start_time_unix_nano: since(definition, times),
        time_unix_nano: times.taken_ns,
        value: Some(number_data_point::Value::AsDouble(value)),
        attributes: attributes(definition, point),
        ..NumberDataPoint::default()
    })
}

fn distribution(definition: &Definition, point: &Point, times: Times) -> Option<HistogramDataPoint> {
    let Value::Histogram(distribution) = &point.value else { return None };
    Some(HistogramDataPoint {
        start_time_unix_nano: since(definition, times),
        time_unix_nano: times.taken_ns,
        count: distribution.counts.iter().sum(),
        sum: Some(distribution.sum),
        bucket_counts: distribution.counts.clone(),
        explicit_bounds: distribution.bounds.to_vec(),
        attributes: attributes(definition, point),
        ..HistogramDataPoint::default()
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::metrics::definitions;

    #[test]
    fn units_are_those_of_the_names() {
        let of = |name: &str| unit(name);
        assert_eq!(of("memctl_ingest_bytes_total"), "By");
        assert_eq!(of("process_cpu_seconds_total"), "s");
        assert_eq!(of("memctl_growth_bytes_per_epoch"), "By/{epoch}");
        assert_eq!(of("memctl_fragmentation_ratio"), "1");
        assert_eq!(of("memctl_events_dropped_total"), "");
        let known = definitions::ALL.iter().filter(|definition| definition.name.contains("bytes"));
        assert!(known.clone().count() > 10 && known.clone().all(|definition| unit(definition.name).starts_with("By")));
    }

    #[test]
    fn a_message_has_a_bounded_size_and_no_point_is_lost() {
        let mut families = vec![Family::single(&definitions::READY, 1.0), Family::new(&definitions::TASK_UP)];
        for (definition, length) in [(&definitions::ITEMS, 3), (&definitions::REFUSED, 1_000)] {
            let mut family = Family::new(definition);
            (0..5_000).for_each(|at| family.add(&[&format!("{at}{}", "é".repeat(length))], f64::from(at)));
            families.push(family);
        }
        let messages = requests(&families, &[], Times { taken_ns: 2, started_ns: 1 });
        let mut reported = std::collections::BTreeSet::new();
        for message in &messages {
            assert!((1..=BYTES_MAX).contains(&message.encoded_len()), "{}", message.encoded_len());
            let [metrics] = message.resource_metrics.as_slice() else { panic!("one resource") };
            for metric in &metrics.scope_metrics[0].metrics {
                let (Some(Data::Gauge(Gauge { data_points })) | Some(Data::Sum(Sum { data_points, .. }))) =
                    &metric.data
                else {
                    panic!("{metric:?}")
                };
                for point in data_points {
                    let label =
                        point.attributes.first().and_then(|label| label.value.clone()?.value).map(
                            |value| match value {
                                any_value::Value::StringValue(text) => text,
                                other => panic!("{other:?}"),
                            },
                        );
                    assert!(reported.insert((metric.name.clone(), label)), "told twice");
                    let since = u64::from(metric.name != "memctl_ready");
                    assert_eq!((point.time_unix_nano, point.start_time_unix_nano), (2, since));
                }
            }
        }
        assert_eq!(reported.len(), 1 + 2 * 5_000);
        assert!((5..10).contains(&messages.len()), "{}", messages.len());
    }
}
