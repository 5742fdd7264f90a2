//! One rank's recorded requests, as an export streams them in, kept as a script for `memctl fit`.
//!
//! Guarantees: one device, the first that comes; memory bounded by the requests that a script keeps. Refuses an allocator that
//! packs inside the driver, and recordings with holes: their requests do not add up.

use std::collections::HashMap;

use memctl_model::{Event, SegmentState, SessionInfo, StackId};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::StackDictionary;
use memctl_proto::v1::export_part::Body;
use memctl_replay::fit::{Script, stack_key};
use memctl_replay::{Conf, ConfError, Follow, Limit, Version};

use crate::export::{ExportError, Sink};

/// See the module.
pub struct Fitting {
    decoder: Decoder,
    events: Vec<Event>,
    dictionary: StackDictionary,
    keys: HashMap<StackId, u64>,
    session: Option<SessionInfo>,
    following: Option<Following>,
    /// Devices that came after the first.
    pub devices_left_out: u32,
    /// Why it cannot be used.
    pub refused: Option<String>,
    /// The device, and its process.
    pub device: u32,
    /// Its name within the job.
    pub process: String,
}

struct Following {
    follow: Follow,
    script: Script,
    conf: Conf,
}

/// What came of it.
pub struct Recorded {
    /// The requests.
    pub script: Script,
    /// The settings.
    pub conf: Conf,
    /// Whether their replay repeats the recording.
    pub exact: bool,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Bytes that were in use when it began.
    pub began_with_bytes: u64,
}

impl Fitting {
    /// Ready for the first part.
    ///
    /// # Errors
    /// No memory for the decoder.
    pub fn new() -> Result<Self, ExportError> {
        Ok(Self {
            decoder: Decoder::new()?,
            events: Vec::new(),
            dictionary: StackDictionary::default(),
            keys: HashMap::new(),
            session: None,
            following: None,
            devices_left_out: 0,
            refused: None,
            device: 0,
            process: String::new(),
        })
    }

    fn begin(&mut self, segments: Vec<SegmentState>) {
        let Some(session) = &self.session else { return };
        let version = Version::of_framework(session.framework.as_deref());
        if matches!(Conf::parse(&session.settings.conf, version), Err(ConfError::Async)) {
            self.refused = Some(ConfError::Async.to_string());
            return;
        }
        let conf = Conf::recorded(&session.settings, version);
        let follow = Follow::new(conf.clone(), Limit::None, &segments);
        self.following = Some(Following { follow, script: Script::new(segments), conf });
    }

    fn replay(&mut self) {
        let Some(Following { follow, script, .. }) = &mut self.following else { return };
        for event in &self.events {
            let dictionary = &self.dictionary;
            let key = *self.keys.entry(event.stack).or_insert_with(|| stack_key(dictionary.frames(event.stack)));
            follow.event(event, |_, request| {
                if let Err(error) = script.push(request, key) {
                    self.refused = Some(error.to_string());
                }
            });
            if self.refused.is_some() {
                self.following = None;
                return;
            }
        }
    }

    /// What came of it; `None` where nothing of the device is stored.
    #[must_use]
    pub fn recorded(mut self) -> Option<Recorded> {
        let Following { mut follow, mut script, conf } = self.following.take()?;
        // (What waits at the end belongs to no request of a script that is full.)
        follow.finish(|_, request| script.push(request, 0).unwrap_or_default());
        let counts = *follow.counts();
        Some(Recorded {
            exact: follow.agreement().is_exact(),
            peak_reserved_bytes: counts.peak_reserved_bytes,
            peak_allocated_bytes: counts.peak_allocated_bytes,
            began_with_bytes: script.began_with_bytes(),
            script,
            conf,
        })
    }
}

impl Sink for Fitting {
    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(_) if self.session.is_some() => self.devices_left_out += 1,
            Body::Start(start) => {
                let session = start.session.ok_or(ExportError::Order("a rank without its session"))?;
                self.session = Some(session.try_into()?);
                (self.device, self.process) = (start.device, start.process);
            }
            _ if self.devices_left_out > 0 || self.refused.is_some() => {}
            Body::Keyframe(keyframe) => {
                let keyframe: memctl_model::Keyframe = keyframe.try_into()?;
                self.begin(keyframe.segments);
            }
            Body::Stacks(batch) => self.dictionary.add(&batch)?,
            Body::Marks(_) => {}
            Body::Chunk(chunk) => {
                self.decoder.decode(&chunk, &mut self.events)?;
                self.replay();
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        Ok(())
    }
}
