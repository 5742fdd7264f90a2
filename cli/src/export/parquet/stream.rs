//! The tables that are made from the stream of events: counters, and on request the events themselves.
//!
//! Guarantees: memory is bounded by the live state, the points of one device ([`Levels`]) and one group of rows of each
//! table. Events keep the store's order. The site is the innermost frame of the user's own code.

use std::collections::HashMap;
use std::io::{self, Write};

use memctl_model::{Action, AllocatorSettings, Event, StackId};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{StackDictionary, samples};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;

use super::table::Holds::{Address, Number, Text, Time};
use super::table::Null::{May, Never};
use super::table::{Cell, Column, Table};
use crate::export::levels::Levels;
use crate::export::window::{Window, Windows};
use crate::export::{ExportError, Sink};

/// The columns of `counters.parquet`.
pub const COUNTERS: [Column; 8] = [
    ("job", Text, Never),
    ("rank", Number, Never),
    ("process", Text, Never),
    ("device", Number, Never),
    ("at", Time, Never),
    ("allocated_bytes", Number, May),
    ("reserved_bytes", Number, May),
    ("device_used_bytes", Number, May),
];

/// The columns of `events.parquet`.
pub const EVENTS: [Column; 14] = [
    ("job", Text, Never),
    ("rank", Number, Never),
    ("process", Text, Never),
    ("device", Number, Never),
    ("at", Time, Never),
    ("action", Text, Never),
    ("address", Address, May),
    ("size_bytes", Number, Never),
    ("device_free_bytes", Number, May),
    ("stream", Address, Never),
    ("pool", Text, Never),
    ("function", Text, May),
    ("file", Text, May),
    ("line", Number, May),
];

/// See the module. Takes the parts of any number of ranks.
pub struct Stream<W: Write + Send> {
    job: Cell,
    counters: Option<Table<W>>,
    events: Option<Table<W>>,
    windows: Windows,
    decoder: Decoder,
    decoded: Vec<Event>,
    device: Option<Device>,
    dictionary: StackDictionary,
    /// Function, file and line of the stacks of this device that events had.
    sites: HashMap<StackId, [Cell; 3]>,
    actions: [Cell; Action::ALL.len()],
    has_events: bool,
}

/// The device whose parts are arriving.
struct Device {
    rank: Cell,
    process: Cell,
    index: Cell,
    window: Window,
    levels: Levels,
}

impl<W: Write + Send> Stream<W> {
    /// Begins both tables, or the first of them.
    ///
    /// # Errors
    /// The decoder cannot be allocated.
    pub fn new(job: &str, windows: Windows, counters: Table<W>, events: Option<Table<W>>) -> Result<Self, ExportError> {
        Ok(Self {
            job: Cell::text(job),
            counters: Some(counters),
            events,
            windows,
            decoder: Decoder::new()?,
            decoded: Vec::new(),
            device: None,
            dictionary: StackDictionary::default(),
            sites: HashMap::new(),
            actions: Action::ALL.map(|action| Cell::text(action.name())),
            has_events: false,
        })
    }

    fn start(&mut self, start: v1::RankStart) -> Result<(), ExportError> {
        self.end_device()?;
        let v1::RankStart { rank, device, session, process, sharing: _ } = start;
        let settings = session.and_then(|session| session.settings);
        let settings = settings.map(AllocatorSettings::try_from).transpose()?.unwrap_or_default();
        let window = self.windows.of(rank);
        self.dictionary = StackDictionary::default();
        self.sites.clear();
        self.device = Some(Device {
            rank: Cell::number(rank.into()),
            process: Cell::text(&process),
            index: Cell::number(device.into()),
            window,
            levels: Levels::new(&settings, window),
        });
        Ok(())
    }

    fn samples(&mut self, batch: v1::SampleBatch) -> Result<(), ExportError> {
        let (Some(device), Some(table)) = (&self.device, &mut self.counters) else { return Ok(()) };
        for sample in samples::from_wire(batch)? {
            let is_within = (device.window.first_ns..=device.window.last_ns).contains(&sample.time_ns);
            if let (Some(used), true) = (sample.device_used_bytes, is_within) {
                let levels = [Cell::Null, Cell::Null, Cell::number(used)];
                counter(table, &self.job, device, sample.time_ns, levels)?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), ExportError> {
        self.decoder.decode(chunk, &mut self.decoded)?;
        let Some(device) = &mut self.device else { return Err(ExportError::Order("events before their rank")) };
        for event in &self.decoded {
            if !device.levels.event(event) {
                continue;
            }
            self.has_events = true;
            let Some(table) = &mut self.events else { continue };
            let &Event { time_ns, addr, size, stream, pool, stack, action } = event;
            let dictionary = &self.dictionary;
            let site = self.sites.entry(stack).or_insert_with(|| site(dictionary, stack));
            let [function, file, line] = site.clone();
            let is_oom = action == Action::Oom;
            table.row([
                self.job.clone(),
                device.rank.clone(),
                device.process.clone(),
                device.index.clone(),
                Cell::number(time_ns),
                self.actions[action as usize].clone(),
                Cell::maybe((!is_oom).then_some(addr), Cell::address),
                Cell::number(size),
                Cell::maybe(is_oom.then_some(addr), Cell::number),
                Cell::address(stream),
                Cell::text(&format!("{}:{}", pool.first, pool.second)),
                function,
                file,
                line,
            ])?;
        }
        Ok(())
    }

    fn end_device(&mut self) -> Result<(), ExportError> {
        let (Some(mut device), Some(table)) = (self.device.take(), &mut self.counters) else { return Ok(()) };
        let nothing = Levels::new(&AllocatorSettings::default(), device.window);
        for point in std::mem::replace(&mut device.levels, nothing).finish() {
            let levels = [Cell::number(point.allocated_bytes), Cell::number(point.reserved_bytes), Cell::Null];
            counter(table, &self.job, &device, point.time_ns, levels)?;
        }
        Ok(())
    }
}

fn counter<W: Write + Send>(
    table: &mut Table<W>,
    job: &Cell,
    device: &Device,
    time_ns: u64,
    [allocated, reserved, used]: [Cell; 3],
) -> io::Result<()> {
    let Device { rank, process, index, .. } = device;
    let at = Cell::number(time_ns);
    table.row([job.clone(), rank.clone(), process.clone(), index.clone(), at, allocated, reserved, used])
}

fn site(dictionary: &StackDictionary, stack: StackId) -> [Cell; 3] {
    let Some(frame) = dictionary.site(stack) else { return [Cell::Null, Cell::Null, Cell::Null] };
    let line = Some(frame.line).filter(|&line| line > 0);
    [Cell::text(&frame.function), Cell::text(&frame.file), Cell::maybe(line, |line| Cell::number(line.into()))]
}

impl<W: Write + Send> Sink for Stream<W> {
    fn wants_samples(&self) -> bool {
        true
    }

    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => self.start(start),
            Body::Stacks(batch) => Ok(self.dictionary.add(&batch)?),
            Body::Keyframe(keyframe) => {
                let Some(device) = &mut self.device else {
                    return Err(ExportError::Order("a keyframe before its rank"));
                };
                device.levels.restore(&keyframe.try_into()?);
                Ok(())
            }
            Body::Samples(batch) => self.samples(batch),
            Body::Chunk(chunk) => self.chunk(&chunk),
            Body::Marks(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.end_device()?;
        if !self.has_events {
            return Err(ExportError::Nothing);
        }
        for table in [self.counters.take(), self.events.take()].into_iter().flatten() {
            table.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{DeviceIndex, Frame, Keyframe, KeyframeReason, PoolId};
    use memctl_proto::chunk::{ChunkMeta, Encoder};
    use memctl_proto::convert::StackSender;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    /// Events of a chunk: blocks of a thousand stacks that are allocated and freed.
    const CHUNK: u64 = 65_536;

    /// The memory of this process at its highest, in bytes.
    fn highest() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn chunk(first: u64) -> Body {
        let mut encoder = Encoder::new(1).unwrap();
        for number in first..first + CHUNK {
            let action = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted][(number % 3) as usize];
            let block = number / 3;
            let event = Event {
                time_ns: number + 1,
                addr: 512 * (block % 4096) + (1 << 40),
                size: 100 + block % 300,
                stack: StackId(if action == Action::Alloc { (block % 1000 + 1) as u32 } else { 0 }),
                pool: PoolId::DEFAULT,
                action,
                stream: 0,
            };
            encoder.push(&event).unwrap();
        }
        Body::Chunk(encoder.finish(&ChunkMeta { first_event: first, ..Default::default() }).unwrap().into())
    }

    /// `MEMCTL_EXPORTED=100000000` writes as many events.
    #[test]
    fn memory_is_bounded_whatever_the_number_of_events() {
        let wanted: u64 = std::env::var("MEMCTL_EXPORTED").map_or(500_000, |text| text.parse().unwrap());
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let [counters, events] = [&files[0], &files[1]].map(|file| file.try_clone().unwrap());
        let (counters, events) = (Table::new(counters, &COUNTERS).unwrap(), Table::new(events, &EVENTS).unwrap());
        let windows = Windows::new(&v1::Selection::default());
        let mut stream = Stream::new("job", windows, counters, Some(events)).unwrap();
        let mut dictionary = StackSender::default();
        for line in 1..=1000 {
            dictionary.add(&[Frame { function: "step".into(), file: "/home/u/train.py".into(), line }]);
        }
        let session = v1::SessionInfo { id: vec![1; 16], ..v1::SessionInfo::default() };
        let start = v1::RankStart { session: Some(session), ..v1::RankStart::default() };
        stream.part(Body::Start(start)).unwrap();
        stream.part(Body::Stacks(dictionary.take().unwrap())).unwrap();
        let keyframe = Keyframe {
            device: DeviceIndex(0),
            at_event: 0,
            time_ns: 0,
            reason: KeyframeReason::Start,
            segments: Vec::new(),
            loose: Vec::new(),
        };
        stream.part(Body::Keyframe((&keyframe).into())).unwrap();
        let chunks = wanted.div_ceil(CHUNK);
        for number in 0..chunks {
            stream.part(chunk(number * CHUNK)).unwrap();
        }
        stream.finish().unwrap();
        let [counters, events] = files.map(|file| SerializedFileReader::new(file).unwrap());
        let rows = |reader: &SerializedFileReader<_>| reader.metadata().file_metadata().num_rows() as u64;
        assert_eq!(rows(&events), chunks * CHUNK);
        assert!(rows(&counters) > 100_000 && rows(&counters) <= 250_000, "{} levels", rows(&counters));
        assert!(highest() < 500_000_000, "{} bytes", highest());
        eprintln!("{} events, at most {} bytes of memory", chunks * CHUNK, highest());
    }
}
