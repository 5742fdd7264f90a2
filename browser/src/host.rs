//! The functions between the page's worker and this module.
//!
//! The worker writes a text into the buffer of [`memctl_input`], calls [`memctl_import`] or [`memctl_get`], and reads
//! the answer from [`memctl_output`]. During an import the worker provides the bytes of files.
//!
//! Guarantees: memory passes in both directions through buffers that this module owns, so no call takes a pointer from
//! the worker.

#![expect(unsafe_code, reason = "exported names and imported functions; each use is explained")]

use std::cell::RefCell;
use std::io::{self, Read};

use memctl_daemon::http::recordings::PageAnswer;

use crate::{ImportedFile, Page};

#[link(wasm_import_module = "memctl")]
unsafe extern "C" {
    /// Writes the next bytes of a file to `at`, at most `room`; returns their number, 0 at the end, or a negative
    /// number if the file cannot be read.
    fn read(file: u32, at: *mut u8, room: usize) -> isize;
    /// Receives the bytes read and the events found in the file of a rank.
    safe fn progress(rank: u32, bytes: f64, events: f64);
}

/// The state of this module. WebAssembly has one thread.
#[derive(Default)]
struct State {
    page: Option<Page>,
    input: Vec<u8>,
    output: Vec<u8>,
    kind: &'static str,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// What to import, as JSON.
#[derive(serde::Deserialize)]
struct Wanted {
    job: String,
    /// The names of the files. The worker knows them by their place.
    files: Vec<String>,
}

/// A file that the worker reads.
struct HostFile(u32);

impl Read for HostFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the worker writes at most `buf.len()` bytes, from the start of the buffer, before it returns.
        let read = unsafe { read(self.0, buf.as_mut_ptr(), buf.len()) };
        match usize::try_from(read) {
            Ok(read) if read <= buf.len() => Ok(read),
            _ => Err(io::Error::other("the browser cannot read the file")),
        }
    }
}

/// A buffer of `bytes` bytes for the next call's input.
// SAFETY: the name is not used elsewhere in the module.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_input(bytes: usize) -> *mut u8 {
    STATE.with_borrow_mut(|state| {
        state.input = vec![0; bytes];
        state.input.as_mut_ptr()
    })
}

/// The last answer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_output() -> *const u8 {
    STATE.with_borrow(|state| state.output.as_ptr())
}

/// The number of bytes of the last answer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_output_bytes() -> usize {
    STATE.with_borrow(|state| state.output.len())
}

/// Whether the last answer is JSON (0), text (1) or bytes (2).
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_output_kind() -> u32 {
    STATE.with_borrow(|state| match state.kind {
        "application/json" => 0,
        "application/octet-stream" => 2,
        _ => 1,
    })
}

/// Imports what the input names; the status is 200, or 400 with a sentence.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_import() -> u32 {
    asked(|page, input| {
        let imported = serde_json::from_slice::<Wanted>(input).map_err(|error| error.to_string()).and_then(|wanted| {
            let files = (0..).zip(wanted.files);
            let files = files.map(|(place, name)| ImportedFile { name: name.into(), reader: HostFile(place) });
            page.import(&wanted.job, files.collect(), &mut |rank, now| {
                progress(rank, now.bytes_read as f64, now.events as f64);
            })
        });
        let kind = "application/json";
        match imported.and_then(|imported| serde_json::to_vec(&imported).map_err(|error| error.to_string())) {
            Ok(content) => PageAnswer { status: 200, kind, content },
            Err(why) => refusal(400, why),
        }
    })
}

/// Answers the address in the input; the status is that of HTTP.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn memctl_get() -> u32 {
    asked(|page, input| match std::str::from_utf8(input) {
        Ok(address) => page.get(address),
        Err(error) => refusal(400, error.to_string()),
    })
}

fn refusal(status: u16, why: String) -> PageAnswer {
    PageAnswer { status, kind: "text/plain; charset=utf-8", content: why.into_bytes() }
}

fn asked(answer: impl FnOnce(&mut Page, &[u8]) -> PageAnswer) -> u32 {
    STATE.with_borrow_mut(|state| {
        let input = std::mem::take(&mut state.input);
        // The old answer is dropped before the new one is computed.
        state.output = Vec::new();
        let known = state.page.take().map_or_else(Page::new, Ok);
        let PageAnswer { status, kind, content } = match known {
            Ok(mut page) => {
                let answer = answer(&mut page, &input);
                state.page = Some(page);
                answer
            }
            Err(error) => refusal(500, error.to_string()),
        };
        (state.output, state.kind) = (content, kind);
        status.into()
    })
}
