//! The link from a trainer to the launcher that hosts it. It is one connection over a Unix socket per session.
//!
//! The trainer sends its identity (the wire's `SessionInfo`) and passes its region. The launcher answers with a welcome
//! or with the reason of a refusal. After that nothing is sent. The end of the connection is the end of the trainer,
//! regardless of how it died.
//!
//! Guarantees: every wait has a limit. Input is bounded and checked. Unexpected descriptors are closed.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use memctl_model::SessionInfo;
use memctl_proto::v1;
use prost::Message;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// How long a trainer waits for the answer. A launcher answers in microseconds, or after a busy disk has created its
/// spool. A stopped launcher must not delay a training for longer. With a shorter limit, trainings on a busy machine
/// would not be recorded.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long a launcher waits for the hello. A trainer sends it at once, but may get no core for a while.
const HELLO_MAX: Duration = Duration::from_secs(20);
/// Maximum bytes of a hello. A session of 64 devices and 64 labels needs far fewer.
const HELLO_BYTES_MAX: usize = 256 << 10;
/// The first bytes of a hello: name and version.
const GREETING: [u8; 8] = *b"MEMCTLH\x01";

/// Why the handshake of a trainer and a launcher failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket cannot be used.
    #[error("the launcher cannot be reached: {0}")]
    Io(#[from] std::io::Error),
    /// The launcher refused. The text is its reason.
    #[error("the launcher refused: {0}")]
    Refused(String),
    /// The message is not a hello of this version.
    #[error("no hello of this version of memctl: {0}")]
    Nonsense(String),
}

/// The trainer's side: sends the hello and passes the region. The caller must keep the stream, because its end is the
/// end of the session.
///
/// # Errors
/// There is no launcher, or it refuses.
pub fn greet(socket: &Path, session: &SessionInfo, region: BorrowedFd<'_>) -> Result<UnixStream, LinkError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let message = v1::SessionInfo::from(session).encode_to_vec();
    let mut head = GREETING.to_vec();
    head.extend((message.len() as u32).to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [region];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(LinkError::Nonsense("no room for a descriptor".into()));
    }
    let sent = rustix::net::sendmsg(&stream, &[IoSlice::new(&head)], &mut ancillary, SendFlags::NOSIGNAL)
        .map_err(std::io::Error::from)?;
    stream.write_all(&head[sent..])?;
    stream.write_all(&message)?;
    let mut answer = [0_u8; 4];
    stream.read_exact(&mut answer)?;
    match u32::from_le_bytes(answer) as usize {
        0 => Ok(stream),
        length => {
            let mut words = vec![0; length.min(4_096)];
            stream.read_exact(&mut words)?;
            Err(LinkError::Refused(String::from_utf8_lossy(&words).into_owned()))
        }
    }
}

/// The launcher's side: reads a hello and takes the region.
///
/// # Errors
/// The trainer sends nothing, or no valid hello.
pub fn hear(stream: &mut UnixStream) -> Result<(SessionInfo, OwnedFd), LinkError> {
    stream.set_read_timeout(Some(HELLO_MAX))?;
    stream.set_write_timeout(Some(HELLO_MAX))?;
    let mut head = [0_u8; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(&*stream, &mut [IoSliceMut::new(&mut head)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .map_err(std::io::Error::from)?;
    let region = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let region = region.ok_or_else(|| LinkError::Nonsense("no memory region came with it".into()))?;
    stream.read_exact(&mut head[received.bytes..])?;
    let (greeting, length) = head.split_at(8);
    if greeting != GREETING {
        return Err(LinkError::Nonsense("another greeting".into()));
    }
    let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
    if length > HELLO_BYTES_MAX {
        return Err(LinkError::Nonsense(format!("a hello of {length} bytes")));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    let session = v1::SessionInfo::decode(&*message).map_err(|error| LinkError::Nonsense(error.to_string()))?;
    let session = SessionInfo::try_from(session).map_err(|error| LinkError::Nonsense(error.to_string()))?;
    Ok((session, region))
}

/// Sends the launcher's answer: a welcome, or the reason of a refusal.
///
/// # Errors
/// The trainer is gone.
pub fn answer(stream: &mut UnixStream, refused: Option<&str>) -> std::io::Result<()> {
    let words = refused.unwrap_or_default();
    let words = &words.as_bytes()[..words.len().min(4_096)];
    stream.write_all(&(words.len() as u32).to_le_bytes())?;
    stream.write_all(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;
    use memctl_model::{DeviceIndex, DeviceInfo, SessionId};

    fn session() -> SessionInfo {
        SessionInfo {
            rank: 3,
            world_size: Some(4),
            pid: Some(1),
            devices: vec![DeviceInfo { index: DeviceIndex(0), ..DeviceInfo::default() }],
            ..SessionInfo::live(SessionId([7; 16]), "j", 1)
        }
    }

    fn meet(refused: Option<&'static str>) -> Result<UnixStream, LinkError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let launcher = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let (session, region) = hear(&mut stream).unwrap();
            assert_eq!(session.rank, 3);
            let region = Region::open(region).unwrap();
            region.set_python(3, 12);
            answer(&mut stream, refused).unwrap();
        });
        let region = Region::create(1, 16).unwrap();
        let met = greet(&path, &session(), region.fd());
        launcher.join().unwrap();
        assert_eq!(region.python(), Some((3, 12)), "it is the same memory");
        met
    }

    #[test]
    fn a_trainer_hands_its_region_over() {
        assert!(meet(None).is_ok());
    }

    #[test]
    fn a_refusal_says_why() {
        assert!(matches!(meet(Some("too many")), Err(LinkError::Refused(words)) if words == "too many"));
    }

    #[test]
    fn nonsense_is_no_hello() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(matches!(hear(&mut there), Err(LinkError::Nonsense(_))));
    }
}
