//! Marks as annotations of a PyTorch snapshot, kept in a temporary file until they are written.
//!
//! Guarantees: annotations are read back in the order in which they were stored. Names are those that PyTorch's users
//! know (`epoch#3`, `step#12`, the name of a region).

use std::io::{self, Read, Write};

use memctl_model::{DeviceIndex, Mark, MarkKind};

use crate::read::ANNOTATED;

/// A mark that is kept for the end of the file.
pub struct Annotation {
    /// Index of its device.
    pub device: u8,
    /// Whether it is the begin of a range.
    pub start: bool,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// PyTorch's name for it.
    pub name: String,
}

/// Stores a mark under the name that PyTorch's users know.
///
/// # Errors Those of the writer.
pub fn note_down(out: &mut impl Write, device: DeviceIndex, mark: &Mark) -> io::Result<()> {
    let mut write = |start: bool, name: &str| {
        out.write_all(&[device.0, u8::from(start)])?;
        out.write_all(&mark.time_ns.to_le_bytes())?;
        out.write_all(&(name.len() as u32).to_le_bytes())?;
        out.write_all(name.as_bytes())
    };
    match &mark.kind {
        MarkKind::EpochBegin(epoch) => write(true, &format!("epoch#{epoch}")),
        MarkKind::EpochEnd(epoch) => write(false, &format!("epoch#{epoch}")),
        MarkKind::StepBegin(step) => write(true, &format!("step#{step}")),
        MarkKind::StepEnd(step) => write(false, &format!("step#{step}")),
        MarkKind::PhaseBegin(phase) => write(true, phase.name()),
        MarkKind::PhaseEnd(phase) => write(false, phase.name()),
        MarkKind::RegionBegin(name) => write(true, name),
        MarkKind::RegionEnd(name) => write(false, name),
        // Only memctl uses windows.
        MarkKind::WindowEnd(_) => Ok(()),
        // The annotation itself is in the trace; readers derive the note from it again.
        MarkKind::Note(name) if name.starts_with(ANNOTATED) => Ok(()),
        // PyTorch has no annotation for a single moment, so the note begins and ends at once.
        MarkKind::Note(name) => write(true, name).and_then(|()| write(false, name)),
    }
}

impl Annotation {
    /// The next annotation; `None` after the last. memctl wrote the file, so a truncated one is a disk error.
    ///
    /// # Errors Those of the reader.
    pub fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0_u8; 14];
        match input.read_exact(&mut head[..1]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        input.read_exact(&mut head[1..])?;
        let [device, start, time @ .., l0, l1, l2, l3] = head;
        let mut name = vec![0; u32::from_le_bytes([l0, l1, l2, l3]) as usize];
        input.read_exact(&mut name)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Some(Self { device, start: start == 1, time_ns: u64::from_le_bytes(time), name }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_down_and_read_back() {
        let mut file = Vec::new();
        let kinds = [MarkKind::StepBegin(12), MarkKind::RegionEnd("nccl:\u{fc}".into()), MarkKind::Note("n".into())];
        for (at, kind) in (0..).zip(kinds) {
            note_down(&mut file, DeviceIndex(3), &Mark { time_ns: at, kind }).unwrap();
        }
        let mut input = file.as_slice();
        let mut read = Vec::new();
        while let Some(annotation) = Annotation::read(&mut input).unwrap() {
            assert_eq!(annotation.device, 3);
            read.push((annotation.start, annotation.time_ns, annotation.name));
        }
        let expected = [(true, 0, "step#12"), (false, 1, "nccl:\u{fc}"), (true, 2, "n"), (false, 2, "n")];
        assert_eq!(read, expected.map(|(start, at, name)| (start, at, name.to_owned())));
        assert!(Annotation::read(&mut &file[..7]).is_err());
    }
}
