//! A hand-written HTTP/2 client for requests that no client library makes, such as sending all of a message except its
//! last byte.
//!
//! Guarantees: it respects the daemon's flow-control windows, so that only the daemon decides what is not read.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
const FRAME: usize = 16 << 10;

/// A connection.
pub struct Http2 {
    stream: TcpStream,
    received: Vec<u8>,
    window: i64,
    initial: i64,
    windows: HashMap<u32, i64>,
    over: HashSet<u32>,
    next: u32,
    answers: usize,
    taken: usize,
}

impl Http2 {
    /// Connects and sends the preface.
    ///
    /// # Errors
    /// The daemon does not accept the connection.
    pub fn open(address: &str) -> std::io::Result<Self> {
        Self::offering(address, 65_535)
    }

    /// Connects with a window of this many bytes for each answer, and never enlarges it.
    ///
    /// # Errors
    /// The daemon does not accept the connection.
    pub fn offering(address: &str, window: u32) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_millis(5)))?;
        let mut this = Self {
            stream,
            received: Vec::new(),
            window: 65_535,
            initial: 65_535,
            windows: HashMap::new(),
            over: HashSet::new(),
            next: 1,
            answers: 0,
            taken: 0,
        };
        this.stream.write_all(PREFACE)?;
        let mut setting = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        setting.extend(window.to_be_bytes());
        this.frame(SETTINGS, 0, 0, &setting)?;
        Ok(this)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame)
    }

    /// Begins a gRPC call; returns its stream number.
    ///
    /// # Errors
    /// The connection broke.
    pub fn call(&mut self, path: &str) -> std::io::Result<u32> {
        let id = self.next;
        self.next += 2;
        // `:method: POST`, `:scheme: http`, then literals with new names, nothing compressed.
        let mut block = vec![0x83, 0x86];
        let mut literal = |name: &str, value: &str| {
            block.push(0);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        };
        literal(":path", path);
        literal(":authority", "localhost");
        literal("content-type", "application/grpc");
        literal("te", "trailers");
        self.frame(HEADERS, END_HEADERS, id, &block)?;
        self.windows.insert(id, self.initial);
        Ok(id)
    }

    /// Sends all but the last byte of a message of this length. Returns the number of bytes that the daemon accepted:
    /// fewer if the call has ended, or if the daemon accepts no more for `patience`.
    ///
    /// # Errors
    /// The connection broke.
    pub fn all_but_the_last_byte(&mut self, id: u32, message: usize, patience: Duration) -> std::io::Result<usize> {
        let mut head = vec![0];
        head.extend((message as u32).to_be_bytes());
        let (mut sent, all) = (0, head.len() + message - 1);
        let mut moved = Instant::now();
        while sent < all && !self.over.contains(&id) && moved.elapsed() < patience {
            self.hear()?;
            let room = self.window.min(self.windows.get(&id).copied().unwrap_or(0)).max(0) as usize;
            let part = room.min(FRAME).min(all - sent);
            if part == 0 {
                continue;
            }
            let mut bytes = vec![0; part];
            for (byte, from) in bytes.iter_mut().zip(head.iter().skip(sent)) {
                *byte = *from;
            }
            self.frame(DATA, 0, id, &bytes)?;
            self.window -= part as i64;
            *self.windows.entry(id).or_default() -= part as i64;
            sent += part;
            moved = Instant::now();
        }
        Ok(sent)
    }

    /// Sends a call's one message, whole.
    ///
    /// # Errors
    /// The connection broke.
    pub fn ask(&mut self, id: u32, message: &[u8]) -> std::io::Result<()> {
        let mut bytes = vec![0];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(message);
        self.window -= bytes.len() as i64;
        self.frame(DATA, END_STREAM, id, &bytes)
    }

    /// The number of responses that have begun, and the bytes received.
    #[must_use]
    pub fn answered(&self) -> (usize, usize) {
        (self.answers, self.taken)
    }

    /// Whether the daemon has ended a call.
    #[must_use]
    pub fn is_over(&self, id: u32) -> bool {
        self.over.contains(&id)
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// The connection broke.
    pub fn hear(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        // Blocks only if there is nothing to send.
        self.stream.set_nonblocking(self.window > 0 && self.windows.values().all(|window| *window > 0))?;
        let read = self.stream.read(&mut buffer);
        self.stream.set_nonblocking(false)?;
        match read {
            Ok(0) => return Err(ErrorKind::ConnectionAborted.into()),
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(()),
            Err(error) => return Err(error),
        }
        while self.received.len() >= 9 {
            let length = u32::from_be_bytes([0, self.received[0], self.received[1], self.received[2]]) as usize;
            if self.received.len() < 9 + length {
                break;
            }
            let frame: Vec<u8> = self.received.drain(..9 + length).collect();
            self.heard(&frame)?;
        }
        Ok(())
    }

    fn heard(&mut self, frame: &[u8]) -> std::io::Result<()> {
        let (kind, flags, payload) = (frame[3], frame[4], &frame[9..]);
        match kind {
            HEADERS if flags & END_STREAM == 0 => self.answers += 1,
            DATA => self.taken += payload.len(),
            _ => {}
        }
        let id = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
        match kind {
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW_SIZE {
                        let size = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                        let change = i64::from(size) - self.initial;
                        self.initial += change;
                        self.windows.values_mut().for_each(|window| *window += change);
                    }
                }
                self.frame(SETTINGS, ACK, 0, &[])?;
            }
            PING if flags & ACK == 0 => self.frame(PING, ACK, 0, payload)?,
            WINDOW_UPDATE if payload.len() == 4 => {
                let more = i64::from(u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]));
                match id {
                    0 => self.window += more,
                    id => *self.windows.entry(id).or_default() += more,
                }
            }
            RESET => _ = self.over.insert(id),
            HEADERS | DATA if flags & END_STREAM != 0 => _ = self.over.insert(id),
            _ => {}
        }
        self.windows.retain(|id, _| !self.over.contains(id));
        Ok(())
    }
}
