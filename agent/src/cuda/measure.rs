//! Measures what NVML and the kernel report about the program, at most once a second, on a background thread.
//!
//! Guarantees: nothing is opened before the program's first step has ended, because opening NVML may take seconds.
//! Without steps nothing is measured. The thread ends with the session and does not keep it alive.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use memctl_model::DeviceIndex;

use super::Shared;
use crate::clock::now_ns;
use crate::sample::host::Proc;
use crate::sample::sampler::{Sampler, Watched};

/// Minimum interval between measurements. NVML's own figures change about this often.
const EVERY: Duration = Duration::from_secs(1);

/// The handle of the thread. The thread ends when it is dropped.
pub(super) struct Measure {
    wanted: SyncSender<()>,
}

impl Measure {
    pub(super) fn start(shared: &Arc<Shared>, devices: Vec<(DeviceIndex, Option<String>)>) -> std::io::Result<Self> {
        // One request may wait. A second one would request the same.
        let (wanted, asked) = sync_channel(1);
        let session = Arc::downgrade(shared);
        std::thread::Builder::new().name("memctl-measure".into()).spawn(move || run(&session, &asked, &devices))?;
        Ok(Self { wanted })
    }

    /// Requests a measurement. Never waits.
    pub(super) fn nudge(&self) {
        // If the channel is full, a measurement is already requested. If it is disconnected, the thread has ended.
        let _ = self.wanted.try_send(());
    }
}

fn run(session: &Weak<Shared>, asked: &Receiver<()>, devices: &[(DeviceIndex, Option<String>)]) {
    let Some(process) = Proc::default().key(std::process::id()) else { return };
    let watched = [Watched { process, devices: devices.to_vec() }];
    let (mut sampler, mut last) = (None, None::<Instant>);
    while asked.recv().is_ok() {
        if last.is_some_and(|last| last.elapsed() < EVERY) {
            continue;
        }
        let sampler = sampler.get_or_insert_with(|| {
            let sampler = Sampler::open();
            if let Some(reason) = sampler.unavailable() {
                tracing::info!(%reason, "no figures of devices from the driver");
            }
            sampler
        });
        let samples = sampler.sample(&watched, now_ns());
        let Some(session) = session.upgrade() else { return };
        session.with(|running| {
            for sample in samples.into_iter().flatten() {
                running.agent.sample(sample);
            }
        });
        last = Some(Instant::now());
    }
}
