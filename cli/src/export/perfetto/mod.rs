//! A job's course as a trace for Perfetto: a process for each rank, with counters, slices and instants.
//!
//! Guarantees: counters are levels that the recording had ([`Levels`]). Slices nest on each of their tracks ([`slices`]).
//! Times are those of the recording, ns since the Unix epoch. Packets are written as they are made: memory is bounded
//! by the live state, the points of one device and the marks of one process.

mod messages;
mod slices;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;

use memctl_answers::finding::Finding;
use memctl_answers::format::text::safe;
use memctl_answers::naming::name_of;
use memctl_model::{Action, AllocatorSettings, Event, Mark, MarkKind};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{marks, samples};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use prost::Message;

use super::levels::Levels;
use super::window::{Window, Windows};
use super::{ExportError, Sink};
use messages::{
    CLOCK_BOOTTIME, CLOCK_REALTIME, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation,
    INCREMENTAL_STATE_CLEARED, ProcessDescriptor, TracePacket, TrackDescriptor, TrackEvent, Type, Unit,
};
use slices::{Edge, lanes};

/// The key of the field `packet` of `Trace`: field 1 with a length.
const PACKET: u8 = 1 << 3 | 2;
/// Ids of processes that have none of their own, or one that another process of the job has, begin here: above every
/// id that Linux gives.
const PIDS_FROM: i32 = 1 << 22;

/// See the module. Takes the parts of any number of ranks.
pub struct Perfetto<W: Write> {
    trace: Trace<W>,
    windows: Windows,
    findings: Vec<Finding>,
    decoder: Decoder,
    events: Vec<Event>,
    processes: Vec<Process>,
    pids: HashSet<i32>,
    device: Option<Device>,
    has_events: bool,
}

/// A process of the trace: a session.
struct Process {
    session: Vec<u8>,
    name: String,
    rank: u32,
    track: u64,
    window: Window,
    /// The ends of its epochs, for findings whose time is not known.
    epoch_ends: BTreeMap<u32, u64>,
    /// The first and the last time of its events.
    events_ns: Option<(u64, u64)>,
    findings_track: Option<u64>,
}

/// The device whose parts are arriving.
struct Device {
    name: String,
    levels: Levels,
    /// Of the process; empty for its second device, whose marks are the same.
    marks: Option<Vec<Mark>>,
    used_track: Option<u64>,
    used_bytes: Option<u64>,
    oom_track: Option<u64>,
}

impl<W: Write> Perfetto<W> {
    /// Begins a trace with the findings of the job; nothing is written yet.
    ///
    /// # Errors
    /// The decoder cannot be allocated.
    pub fn new(out: W, windows: Windows, findings: Vec<Finding>) -> Result<Self, ExportError> {
        Ok(Self {
            trace: Trace { out, tracks: 0, is_begun: false },
            windows,
            findings,
            decoder: Decoder::new()?,
            events: Vec::new(),
            processes: Vec::new(),
            pids: HashSet::new(),
            device: None,
            has_events: false,
        })
    }

    fn start(&mut self, start: v1::RankStart) -> Result<(), ExportError> {
        self.end_device()?;
        let v1::RankStart { rank, device, session, process, sharing: _ } = start;
        let session = session.ok_or(ExportError::Order("a rank without its session"))?;
        let settings = session.settings.map(AllocatorSettings::try_from).transpose()?.unwrap_or_default();
        let window = self.windows.of(rank);
        self.trace.begin(session.started_ns)?;
        let is_new = self.processes.last().is_none_or(|last| last.session != session.id);
        if is_new {
            let mut name = name_of(&process, rank);
            if let Some(host) = &session.host {
                name = format!("{name} ({})", safe(host));
            }
            let own = session.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| !self.pids.contains(pid));
            let pid = own.unwrap_or(PIDS_FROM.saturating_add(self.processes.len() as i32));
            self.pids.insert(pid);
            let of = ProcessDescriptor { pid: Some(pid), process_name: Some(name) };
            let track = self.trace.track(TrackDescriptor { process: Some(of), ..TrackDescriptor::default() })?;
            self.processes.push(Process {
                session: session.id,
                name: name_of(&process, rank),
                rank,
                track,
                window,
                epoch_ends: BTreeMap::new(),
                events_ns: None,
                findings_track: None,
            });
        }
        self.device = Some(Device {
            name: format!("cuda:{device}"),
            levels: Levels::new(&settings, window),
            marks: is_new.then(Vec::new),
            used_track: None,
            used_bytes: None,
            oom_track: None,
        });
        Ok(())
    }

    /// The device whose parts arrive, and its process.
    fn present(&mut self) -> Result<(&mut Device, &mut Process, &mut Trace<W>), ExportError> {
        match (&mut self.device, self.processes.last_mut()) {
            (Some(device), Some(process)) => Ok((device, process, &mut self.trace)),
            _ => Err(ExportError::Order("a part before its rank")),
        }
    }

    fn marks(&mut self, batch: &v1::MarkBatch) -> Result<(), ExportError> {
        let (device, process, _) = self.present()?;
        let Some(known) = &mut device.marks else { return Ok(()) };
        for mark in marks::from_wire(batch)? {
            if let MarkKind::EpochEnd(epoch) = mark.kind {
                process.epoch_ends.insert(epoch, mark.time_ns);
            }
            known.push(mark);
        }
        Ok(())
    }

    fn samples(&mut self, batch: v1::SampleBatch) -> Result<(), ExportError> {
        let (device, process, trace) = self.present()?;
        for sample in samples::from_wire(batch)? {
            let Some(used) = sample.device_used_bytes else { continue };
            let is_within = (process.window.first_ns..=process.window.last_ns).contains(&sample.time_ns);
            if !is_within || device.used_bytes == Some(used) {
                continue;
            }
            device.used_bytes = Some(used);
            let track = match device.used_track {
                Some(track) => track,
                None => trace.counter(process.track, &format!("{} device used", device.name))?,
            };
            device.used_track = Some(track);
            trace.value(track, sample.time_ns, used)?;
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), ExportError> {
        self.decoder.decode(chunk, &mut self.events)?;
        let events = std::mem::take(&mut self.events);
        let (device, process, trace) = self.present()?;
        let mut is_any = false;
        for event in &events {
            if !device.levels.event(event) {
                continue;
            }
            is_any = true;
            let (first, _) = process.events_ns.unwrap_or((event.time_ns, event.time_ns));
            process.events_ns = Some((first, event.time_ns));
            if event.action == Action::Oom {
                let track = match device.oom_track {
                    Some(track) => track,
                    None => trace.child(process.track, &format!("{} out of memory", device.name))?,
                };
                device.oom_track = Some(track);
                let details = vec![number("requested_bytes", event.size), number("device_free_bytes", event.addr)];
                trace.instant(track, event.time_ns, "out of memory", details)?;
            }
        }
        self.has_events |= is_any;
        self.events = events;
        Ok(())
    }

    fn end_device(&mut self) -> Result<(), ExportError> {
        let (Some(device), Some(process)) = (self.device.take(), self.processes.last()) else { return Ok(()) };
        let Device { name, levels, marks, .. } = device;
        let trace = &mut self.trace;
        let points = levels.finish();
        if !points.is_empty() {
            let allocated = trace.counter(process.track, &format!("{name} allocated"))?;
            let reserved = trace.counter(process.track, &format!("{name} reserved"))?;
            let mut before = (None, None);
            for point in points {
                let now = (Some(point.allocated_bytes), Some(point.reserved_bytes));
                if now.0 != before.0 {
                    trace.value(allocated, point.time_ns, point.allocated_bytes)?;
                }
                if now.1 != before.1 {
                    trace.value(reserved, point.time_ns, point.reserved_bytes)?;
                }
                before = now;
            }
        }
        let (Some(marks), Some(events_ns)) = (marks, process.events_ns) else { return Ok(()) };
        for (at, lane) in lanes(&marks, process.window, events_ns).into_iter().enumerate() {
            let name = if at == 0 { "training".to_owned() } else { format!("training {}", at + 1) };
            let track = trace.child(process.track, &name)?;
            for (time_ns, edge) in lane {
                trace.edge(track, time_ns, edge)?;
            }
        }
        Ok(())
    }

    fn findings(&mut self) -> Result<(), ExportError> {
        for finding in std::mem::take(&mut self.findings) {
            for process in &mut self.processes {
                let is_concerned = match finding.processes.is_empty() {
                    true => finding.ranks.contains(&process.rank),
                    false => finding.processes.contains(&process.name),
                };
                let (true, Some((first, last))) = (is_concerned, process.events_ns) else { continue };
                let at = finding.first_seen.at.map(|at| at.0);
                let of_epoch = || finding.first_seen.epoch.and_then(|epoch| process.epoch_ends.get(&epoch).copied());
                let at = at.or_else(of_epoch).unwrap_or(last);
                // Findings are about the whole run; those of other times are not shown in a part of it.
                if !(process.window.first_ns..=process.window.last_ns).contains(&at) {
                    continue;
                }
                let track = match process.findings_track {
                    Some(track) => track,
                    None => self.trace.child(process.track, "findings")?,
                };
                process.findings_track = Some(track);
                self.trace.instant(track, at.clamp(first, last), &finding.title, details(&finding))?;
            }
        }
        Ok(())
    }
}

impl<W: Write> Sink for Perfetto<W> {
    fn wants_samples(&self) -> bool {
        true
    }

    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => self.start(start),
            Body::Stacks(_) => Ok(()),
            Body::Keyframe(keyframe) => {
                let (device, _, _) = self.present()?;
                device.levels.restore(&keyframe.try_into()?);
                Ok(())
            }
            Body::Marks(batch) => self.marks(&batch),
            Body::Samples(batch) => self.samples(batch),
            Body::Chunk(chunk) => self.chunk(&chunk),
        }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.end_device()?;
        if !self.has_events {
            return Err(ExportError::Nothing);
        }
        self.findings()?;
        Ok(self.trace.out.flush()?)
    }
}

/// What a finding says beside its sentence.
fn details(finding: &Finding) -> Vec<DebugAnnotation> {
    let mut details =
        vec![text("kind", &finding.kind), text("severity", finding.severity.name()), text("advice", &finding.advice)];
    details.extend(finding.site.as_ref().map(|site| text("site", &memctl_answers::naming::place(&site.frame))));
    details.extend(finding.live_bytes.map(|bytes| number("live_bytes", bytes)));
    details
}

fn text(name: &str, text: &str) -> DebugAnnotation {
    let string_value = Some(safe(text).into_owned());
    DebugAnnotation { name: Some(name.to_owned()), string_value, uint_value: None }
}

fn number(name: &str, number: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), uint_value: Some(number), string_value: None }
}

/// Writes packets.
struct Trace<W: Write> {
    out: W,
    tracks: u64,
    is_begun: bool,
}

impl<W: Write> Trace<W> {
    fn packet(&mut self, packet: TracePacket) -> Result<(), ExportError> {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(PACKET);
        let packet = TracePacket { trusted_packet_sequence_id: Some(1), ..packet };
        packet.encode_length_delimited(&mut bytes).map_err(std::io::Error::other)?;
        Ok(self.out.write_all(&bytes)?)
    }

    fn track(&mut self, of: TrackDescriptor) -> Result<u64, ExportError> {
        self.tracks += 1;
        let track_descriptor = Some(TrackDescriptor { uuid: Some(self.tracks), ..of });
        self.packet(TracePacket { track_descriptor, ..TracePacket::default() })?;
        Ok(self.tracks)
    }

    /// States once that the trace's clock is the wall clock, so a viewer can show the date. The time is one of the
    /// recording: a viewer would show the years between another time and the recording.
    fn begin(&mut self, time_ns: u64) -> Result<(), ExportError> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let clock = |id| Clock { clock_id: Some(id), timestamp: Some(time_ns) };
        let clocks = vec![clock(CLOCK_BOOTTIME), clock(CLOCK_REALTIME)];
        self.packet(TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks }),
            sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        })
    }

    fn child(&mut self, parent: u64, name: &str) -> Result<u64, ExportError> {
        let (name, parent_uuid) = (Some(name.to_owned()), Some(parent));
        self.track(TrackDescriptor { name, parent_uuid, ..TrackDescriptor::default() })
    }

    fn counter(&mut self, parent: u64, name: &str) -> Result<u64, ExportError> {
        let counter = Some(CounterDescriptor { unit: Some(Unit::SizeBytes.into()) });
        let (name, parent_uuid) = (Some(name.to_owned()), Some(parent));
        self.track(TrackDescriptor { name, parent_uuid, counter, ..TrackDescriptor::default() })
    }

    fn event(&mut self, time_ns: u64, of: TrackEvent) -> Result<(), ExportError> {
        self.packet(TracePacket { timestamp: Some(time_ns), track_event: Some(of), ..TracePacket::default() })
    }

    fn value(&mut self, track: u64, time_ns: u64, bytes: u64) -> Result<(), ExportError> {
        let counter_value = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.event(time_ns, TrackEvent { counter_value, ..of(Type::Counter, track) })
    }

    fn edge(&mut self, track: u64, time_ns: u64, edge: Edge) -> Result<(), ExportError> {
        match edge {
            Edge::Begin(name) => {
                let categories = vec!["memctl".to_owned()];
                self.event(time_ns, TrackEvent { name: Some(name), categories, ..of(Type::SliceBegin, track) })
            }
            Edge::End => self.event(time_ns, of(Type::SliceEnd, track)),
        }
    }

    fn instant(
        &mut self,
        track: u64,
        time_ns: u64,
        name: &str,
        debug_annotations: Vec<DebugAnnotation>,
    ) -> Result<(), ExportError> {
        let (name, categories) = (Some(safe(name).into_owned()), vec!["memctl".to_owned()]);
        self.event(time_ns, TrackEvent { name, categories, debug_annotations, ..of(Type::Instant, track) })
    }
}

fn of(kind: Type, track: u64) -> TrackEvent {
    TrackEvent { r#type: Some(kind.into()), track_uuid: Some(track), ..TrackEvent::default() }
}
