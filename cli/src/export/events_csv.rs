//! Events, one per line, for data frames and spreadsheets.
//!
//! Guarantees: nothing is written before the first event, and a slice without events is an error. Events keep the
//! store's order. Addresses are hexadecimal, because spreadsheets round large numbers. The site is the innermost frame
//! of the user's own code.

use std::io::Write;

use memctl_answers::format::csv::{self, Cell};
use memctl_answers::format::time;
use memctl_model::{Action, Event};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::StackDictionary;
use memctl_proto::v1::export_part::Body;

use super::window::{Window, Windows};
use super::{ExportError, Sink};

const COLUMNS: [&str; 13] = [
    "rank",
    "device",
    "at",
    "action",
    "address",
    "size_bytes",
    "device_free_bytes",
    "stream",
    "pool",
    "function",
    "file",
    "line",
    "process",
];

/// See the module. Takes the parts of any number of ranks.
pub struct EventsCsv<W> {
    out: W,
    windows: Windows,
    decoder: Decoder,
    events: Vec<Event>,
    rank: Option<(u32, u32, Window)>,
    process: String,
    headed: bool,
    dictionary: StackDictionary,
}

impl<W: Write> EventsCsv<W> {
    /// Writes nothing yet: a refused request must not leave half a file.
    ///
    /// # Errors
    /// The decoder cannot be allocated.
    pub fn new(out: W, windows: Windows) -> Result<Self, ExportError> {
        let decoder = Decoder::new()?;
        let dictionary = StackDictionary::default();
        Ok(Self {
            out,
            windows,
            decoder,
            events: Vec::new(),
            rank: None,
            process: String::new(),
            headed: false,
            dictionary,
        })
    }

    fn event(&mut self, event: &Event) -> Result<(), ExportError> {
        let Some((rank, device, window)) = self.rank else {
            return Err(ExportError::Order("events before their rank"));
        };
        let Event { time_ns, addr, size, stream, pool, stack, action } = *event;
        if !(window.first_ns..=window.last_ns).contains(&time_ns) {
            return Ok(());
        }
        if !self.headed {
            self.headed = true;
            csv::header(&mut self.out, &COLUMNS)?;
        }
        let site = self.dictionary.site(stack);
        let oom = action == Action::Oom;
        let cells = [
            Cell::plain(rank),
            Cell::plain(device),
            Cell::plain(time::rfc3339(time_ns)),
            Cell::plain(action.name()),
            Cell::maybe((!oom).then(|| format!("{addr:#x}"))),
            Cell::plain(size),
            Cell::maybe(oom.then_some(addr)),
            Cell::plain(stream),
            Cell::plain(format!("{}:{}", pool.first, pool.second)),
            Cell::maybe_text(site.map(|frame| &*frame.function)),
            Cell::maybe_text(site.map(|frame| &*frame.file)),
            Cell::maybe(site.map(|frame| frame.line).filter(|&line| line > 0)),
            Cell::text(&self.process),
        ];
        Ok(csv::record(&mut self.out, &cells)?)
    }
}

impl<W: Write> Sink for EventsCsv<W> {
    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => {
                self.process = start.process;
                self.rank = Some((start.rank, start.device, self.windows.of(start.rank)));
                self.dictionary = StackDictionary::default();
                Ok(())
            }
            Body::Stacks(batch) => Ok(self.dictionary.add(&batch)?),
            Body::Chunk(chunk) => {
                let mut events = std::mem::take(&mut self.events);
                let decoded = self.decoder.decode(&chunk, &mut events).map_err(ExportError::from);
                let written = decoded.and_then(|_| events.iter().try_for_each(|event| self.event(event)));
                self.events = events;
                written
            }
            Body::Keyframe(_) | Body::Marks(_) | Body::Samples(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        if !self.headed {
            return Err(ExportError::Nothing);
        }
        Ok(self.out.flush()?)
    }
}
