//! Wraps every request: records its sender, counts it as in progress, and bounds the bytes of incomplete messages.
//!
//! Guarantees: all incomplete messages count against one budget. gRPC buffers a message of up to 8 MiB per stream until
//! it is complete, so a client could hold that much by withholding the last byte.
//!
//! When the budget is used up, a stream that needs more waits. After [`FAIR`], the oldest message of the peer that
//! holds the most is dropped, so that unfinished messages block no other peer. A message that arrives more slowly than
//! [`SLOWEST`] is always dropped.
//!
//! A response is passed to its connection in pieces as the peer takes them. If the peer takes nothing of it, the
//! connection is closed. A response that keeps a permit ([`ResponseGuard`]) is dropped if the peer takes it too slowly.
//!
//! (Over 400 lines: one budget, and every way in which a request takes from it and returns to it.)

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Request, Response};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::connection::{Caller, STALLED_MAX};
use super::connection_limits::{IDLE_MAX, Owner, Taking, Underway};
use super::watches::{WATCH, WATCH_MAX, Watch, Watches};
use crate::permits;

/// Budget for incomplete messages, over all streams.
pub const RECEIVING_BYTES: usize = 128 << 20;
/// When the budget is used up, a message of this age may be dropped for others.
const FAIR: Duration = Duration::from_secs(3);
/// Every message may take this long, in addition to its time at [`SLOWEST`] bytes a second.
const GRACE: Duration = Duration::from_secs(30);
/// The lowest rate at which a message may arrive, in bytes a second.
const SLOWEST: usize = 32 << 10;
/// How often a waiting stream checks again.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Bytes of a response passed to a connection at a time: one HTTP/2 frame.
const PIECE: usize = 16 << 10;
/// Calls with a streamed response, which buffer little data, and how long that data may wait for the peer.
const STREAMS: [(&str, Option<Duration>); 8] = [
    ("/memctl.v1.Ingest/Push", None),
    // A person may read this response with a pager.
    ("/memctl.v1.Query/Export", Some(IDLE_MAX)),
    // This is one answer, which may take long to compute.
    ("/memctl.v1.Query/GetWhatIf", Some(STALLED_MAX)),
    ("/memctl.v1.Query/GetNeed", Some(STALLED_MAX)),
    ("/memctl.v1.Query/GetFit", Some(STALLED_MAX)),
    ("/memctl.v1.Query/GetProfile", Some(STALLED_MAX)),
    ("/grpc.health.v1.Health/Watch", None),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Some(IDLE_MAX)),
];
/// Length of the prefix of a message: a flag and the message's length.
const PREFIX: usize = 5;

/// The layer around every request.
#[derive(Clone)]
pub struct Requests {
    budget: Arc<Budget>,
    watches: Watches,
}

impl Requests {
    /// Wraps requests with a budget of this many bytes for incomplete messages.
    #[must_use]
    pub fn new(receiving_bytes: usize) -> Self {
        Self {
            budget: Arc::new(Budget { bytes: receiving_bytes, inner: Mutex::default() }),
            watches: Watches::default(),
        }
    }
}

impl<S> Layer<S> for Requests {
    type Service = Watched<S>;

    fn layer(&self, inner: S) -> Watched<S> {
        Watched { inner, budget: self.budget.clone(), watches: self.watches.clone() }
    }
}

/// A service wrapped by [`Requests`].
#[derive(Clone)]
pub struct Watched<S> {
    inner: S,
    budget: Arc<Budget>,
    watches: Watches,
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Watched<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Some(caller) = request.extensions_mut().remove::<Caller>() else {
            return Box::pin(self.inner.call(request));
        };
        let admission = caller.admission();
        let Caller { peer, state } = caller;
        let underway = state.begin();
        let is_watch = request.uri().path() == WATCH;
        let watch = match is_watch.then(|| Watch::begin(&self.watches, state.whose)).transpose() {
            Ok(watch) => watch,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        request.extensions_mut().insert(admission);
        let taking = patience(request.uri().path()).map(|patience| state.answer(patience));
        request.extensions_mut().insert(peer);
        let entry = Entry::new(self.budget.clone(), state.whose);
        let request = request.map(|body| Body::new(Receiving::new(body, entry)));
        let answering = self.inner.call(request);
        Box::pin(async move {
            let mut answer = answering.await?;
            let held = answer.extensions_mut().remove::<ResponseGuard>();
            // The head is being sent, so the data after it is ready.
            taking.iter().for_each(Taking::ready);
            let rest = Bytes::new();
            let over = watch.is_some().then(|| Box::pin(tokio::time::sleep(WATCH_MAX)));
            let answer_of =
                |body| Answer { body, rest, deadline: None, taking, over, _watch: watch, _underway: underway, held };
            Ok(answer.map(|body| Body::new(answer_of(body))))
        })
    }
}

/// A value that a response keeps until it is sent or dropped. The handler puts it into the response's extensions.
#[derive(Clone)]
pub struct ResponseGuard {
    _kept: Arc<dyn Send + Sync>,
}

impl ResponseGuard {
    /// Keeps this value.
    pub fn new(kept: impl Send + Sync + 'static) -> Self {
        Self { _kept: Arc::new(kept) }
    }
}

/// How long a ready part of a response may wait for its peer; `None` means without limit.
fn patience(path: &str) -> Option<Duration> {
    match STREAMS.iter().find(|(stream, _)| *stream == path) {
        Some((_, patience)) => *patience,
        None => Some(STALLED_MAX),
    }
}

/// A response. Its request counts as in progress until the response is sent.
struct Answer {
    body: Body,
    /// The rest of a frame that the peer has not taken yet.
    rest: Bytes,
    /// The time by which the frame must be taken, if the response keeps something.
    deadline: Option<Instant>,
    /// Set if the peer must take the response in time.
    taking: Option<Taking>,
    /// The time at which a health watch ends.
    over: Option<Pin<Box<Sleep>>>,
    _watch: Option<Watch>,
    _underway: Underway,
    held: Option<ResponseGuard>,
}

impl Answer {
    /// The next piece. It is copied, because a slice would keep the whole message in memory.
    fn piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PIECE);
        Frame::data(Bytes::copy_from_slice(&self.rest.split_to(length)))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    /// Called when the peer has room for more.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            (this.rest, this.deadline, this.held) = (Bytes::new(), None, None);
            return Poll::Ready(Some(Err(Status::deadline_exceeded("the answer was taken too slowly"))));
        }
        if this.over.as_mut().is_some_and(|over| over.as_mut().poll(cx).is_ready()) {
            this.over = None;
            return Poll::Ready(Some(Err(Status::unavailable("a watch has ended after its time; begin another"))));
        }
        let next = match this.rest.is_empty() {
            false => Poll::Ready(Some(Ok(this.piece()))),
            true => match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(match frame.into_data() {
                    Ok(data) if data.len() > PIECE => {
                        this.deadline = this.held.as_ref().map(|_| permits::deadline(data.len()));
                        this.rest = data;
                        this.piece()
                    }
                    Ok(data) => Frame::data(data),
                    Err(trailers) => trailers,
                }))),
                other => other,
            },
        };
        if let Some(taking) = &this.taking {
            match next {
                Poll::Ready(Some(Ok(_))) => taking.ready(),
                _ => taking.taken(),
            }
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The body's own hint does not include the rest of a frame.
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

/// The budget for incomplete messages.
struct Budget {
    bytes: usize,
    inner: Mutex<Gathering>,
}

#[derive(Default)]
struct Gathering {
    next: u64,
    held: usize,
    messages: HashMap<u64, Message>,
}

struct Message {
    whose: Owner,
    held: usize,
    since: Instant,
    given_up: bool,
    waker: Option<Waker>,
}

impl Message {
    fn is_late(&self) -> bool {
        self.since.elapsed() >= GRACE + Duration::from_secs((self.held / SLOWEST) as u64)
    }
}

/// One stream's share of the budget.
struct Entry {
    budget: Arc<Budget>,
    whose: Owner,
    number: Option<u64>,
}

/// The result of a request for room.
enum Room {
    Given,
    Wait,
    GivenUp,
}

impl Entry {
    fn new(budget: Arc<Budget>, whose: Owner) -> Self {
        Self { budget, whose, number: None }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Gathering> {
        self.budget.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lowers the stream's share to `bytes`; a new message restarts the clock.
    fn hold(&mut self, bytes: usize, is_same: bool) {
        let number = self.number;
        let mut inner = self.lock();
        let Some(message) = number.and_then(|number| inner.messages.get_mut(&number)) else { return };
        let freed = message.held.saturating_sub(bytes);
        message.held -= freed;
        if !is_same {
            message.since = Instant::now();
        }
        inner.held -= freed;
        if bytes == 0
            && let Some(number) = number
        {
            inner.messages.remove(&number);
            drop(inner);
            self.number = None;
        }
    }

    /// Requests room for `more` bytes.
    fn ask(&mut self, more: usize, waker: &Waker) -> Room {
        let (whose, number, bytes) = (self.whose, self.number, self.budget.bytes);
        let mut inner = self.lock();
        let number = number.unwrap_or_else(|| {
            inner.next += 1;
            let number = inner.next;
            let fresh = Message { whose, held: 0, since: Instant::now(), given_up: false, waker: None };
            inner.messages.insert(number, fresh);
            number
        });
        let full = inner.held + more > bytes;
        if full {
            inner.give_one_up(number);
        }
        let room = match inner.messages.get_mut(&number) {
            Some(message) if message.given_up => Room::GivenUp,
            Some(message) if full && message.is_late() => Room::GivenUp,
            Some(message) if full => {
                message.waker = Some(waker.clone());
                Room::Wait
            }
            Some(message) => {
                message.held += more;
                message.waker = Some(waker.clone());
                inner.held += more;
                Room::Given
            }
            None => Room::GivenUp,
        };
        drop(inner);
        self.number = Some(number);
        room
    }

    /// Whether the message was dropped or is too slow. If not, `waker` is woken when the message is dropped.
    fn is_over(&self, waker: &Waker) -> bool {
        let Some(number) = self.number else { return false };
        let mut inner = self.lock();
        let Some(message) = inner.messages.get_mut(&number) else { return false };
        message.waker = Some(waker.clone());
        message.given_up || message.is_late()
    }
}

impl Gathering {
    /// Drops the oldest message of the peer that holds the most, if it is older than [`FAIR`].
    fn give_one_up(&mut self, asks: u64) {
        let mut by_peer: HashMap<Owner, usize> = HashMap::new();
        for message in self.messages.values() {
            *by_peer.entry(message.whose).or_default() += message.held;
        }
        let Some((&most, _)) = by_peer.iter().max_by_key(|(_, held)| **held) else { return };
        let candidates = self.messages.iter_mut().filter(|(number, message)| {
            **number != asks && message.whose == most && !message.given_up && message.held > 0
        });
        let Some((_, victim)) = candidates.min_by_key(|(_, message)| message.since) else { return };
        if victim.since.elapsed() < FAIR {
            return;
        }
        victim.given_up = true;
        // Its bytes are free after its stream wakes and drops them.
        if let Some(waker) = victim.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut inner = self.lock();
        if let Some(message) = inner.messages.remove(&number) {
            inner.held -= message.held;
        }
    }
}

/// The position within the stream of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Framing {
    /// Received bytes of the next prefix.
    prefix: [u8; PREFIX],
    have: usize,
    /// Bytes of the current message that are still missing.
    missing: usize,
    /// Bytes of the current message that were received, including the prefix.
    gathered: usize,
    /// The number of complete messages.
    whole: u64,
}

impl Framing {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.have < PREFIX {
                self.prefix[self.have] = bytes.get_u8();
                self.have += 1;
                self.gathered += 1;
                if self.have == PREFIX {
                    let [_, length @ ..] = self.prefix;
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            } else {
                let part = self.missing.min(bytes.len());
                bytes.advance(part);
                self.missing -= part;
                self.gathered += part;
            }
            if self.have == PREFIX && self.missing == 0 {
                *self = Self { whole: self.whole + 1, ..Self::default() };
            }
        }
    }
}

/// A request's bytes before they reach the decoder.
struct Receiving {
    body: Body,
    entry: Entry,
    framing: Framing,
    /// A frame that waits for room in the budget.
    waiting: Option<Frame<Bytes>>,
    look: Pin<Box<Sleep>>,
}

impl Receiving {
    fn new(body: Body, entry: Entry) -> Self {
        Self { body, entry, framing: Framing::default(), waiting: None, look: Box::pin(tokio::time::sleep(LOOK_EVERY)) }
    }

    fn look_again(&mut self, cx: &mut Context<'_>) {
        while self.look.as_mut().poll(cx).is_ready() {
            let next = Instant::now() + LOOK_EVERY;
            self.look.as_mut().reset(next);
        }
    }

    fn give(&mut self, frame: Frame<Bytes>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(data) = frame.data_ref() else { return Poll::Ready(Some(Ok(frame))) };
        match self.entry.ask(data.len(), cx.waker()) {
            Room::Given => {
                self.framing.take(data);
                Poll::Ready(Some(Ok(frame)))
            }
            Room::Wait => {
                self.waiting = Some(frame);
                self.look_again(cx);
                Poll::Pending
            }
            Room::GivenUp => Poll::Ready(Some(Err(given_up()))),
        }
    }
}

fn given_up() -> Status {
    Status::resource_exhausted("the message came too slowly: others need the memory that it holds; retry later")
}

impl HttpBody for Receiving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(frame) = this.waiting.take() {
            return this.give(frame, cx);
        }
        // The decoder polls only after it has taken every complete message, so it holds only the incomplete one.
        let before = this.framing.whole;
        this.framing.whole = 0;
        this.entry.hold(this.framing.gathered, before == 0);
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => this.give(frame, cx),
            Poll::Ready(other) => Poll::Ready(other),
            Poll::Pending => {
                if this.framing.gathered > 0 {
                    if this.entry.is_over(cx.waker()) {
                        return Poll::Ready(Some(Err(given_up())));
                    }
                    this.look_again(cx);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;

    use super::*;

    /// Advances time by this much.
    fn pass(budget: &Budget, time: Duration) {
        budget.inner.lock().unwrap().messages.values_mut().for_each(|message| message.since -= time);
    }

    #[test]
    fn framing_tells_what_is_gathered() {
        let mut framing = Framing::default();
        framing.take(&[0, 0, 0, 0]);
        assert_eq!((framing.gathered, framing.whole), (4, 0));
        framing.take(&[3, 1, 2]);
        assert_eq!((framing.gathered, framing.whole), (7, 0));
        framing.take(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((framing.gathered, framing.whole), (5, 2));
        framing.take(&[9]);
        assert_eq!((framing.gathered, framing.whole), (0, 3));
    }

    #[test]
    fn every_answer_that_is_a_stream_is_named() {
        let sets = [
            memctl_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        ];
        let mut streams = BTreeSet::new();
        for file in sets.into_iter().flat_map(|set| prost_types::FileDescriptorSet::decode(set).unwrap().file) {
            for service in &file.service {
                for method in service.method.iter().filter(|method| method.server_streaming()) {
                    streams.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
        assert_eq!(streams, STREAMS.iter().map(|(path, _)| (*path).to_owned()).collect());
        assert_eq!(patience("/memctl.v1.Query/GetReport"), Some(STALLED_MAX));
    }

    #[tokio::test]
    async fn an_answer_is_taken_piece_by_piece_and_waits_for_its_peer_meanwhile() {
        use http_body_util::BodyExt as _;

        let state = super::super::connection_limits::State::new(Owner::Process);
        let dropped = Arc::new(());
        let answer = |text: &'static [u8]| Answer {
            body: Body::new(http_body_util::Full::new(Bytes::from_static(text)).map_err(|never| match never {})),
            rest: Bytes::new(),
            deadline: None,
            taking: Some(state.answer(Duration::ZERO)),
            over: None,
            _watch: None,
            _underway: state.begin(),
            held: Some(ResponseGuard::new(dropped.clone())),
        };
        let mut long = answer(&[7; 3 * PIECE + 1]);
        long.taking.as_ref().unwrap().ready();
        assert!(state.overdue(true).is_some(), "nothing of it was taken");
        let mut lengths = Vec::new();
        while let Some(frame) = long.frame().await {
            lengths.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(lengths, [PIECE, PIECE, PIECE, 1]);
        assert_eq!(state.overdue(true), None, "all of it was");
        let short = answer(&[7; 3]).collect().await.unwrap().to_bytes();
        assert_eq!(&short[..], [7; 3]);
        assert_eq!(Arc::strong_count(&dropped), 2);
        drop(long);
        assert_eq!(Arc::strong_count(&dropped), 1);
    }

    #[tokio::test]
    async fn the_oldest_of_the_largest_peer_makes_room() {
        let Requests { budget, .. } = Requests::new(100);
        let waker = Waker::noop();
        let entry = |user: u32| Entry::new(budget.clone(), Owner::User(user));
        let (mut first, mut second, mut honest) = (entry(1), entry(1), entry(2));
        assert!(matches!(first.ask(40, waker), Room::Given));
        assert!(matches!(second.ask(40, waker), Room::Given));
        assert!(matches!(honest.ask(30, waker), Room::Wait), "every message has a moment");
        pass(&budget, FAIR);
        assert!(matches!(honest.ask(30, waker), Room::Wait), "the bytes are still there");
        assert!(first.is_over(waker) && !second.is_over(waker) && !honest.is_over(waker));
        drop(first);
        assert!(matches!(honest.ask(30, waker), Room::Given));
        honest.hold(10, true);
        assert_eq!(budget.inner.lock().unwrap().held, 50);
        honest.hold(0, false);
        drop((second, honest));
        let inner = budget.inner.lock().unwrap();
        assert_eq!((inner.held, inner.messages.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_message_that_trickles_is_given_up() {
        let Requests { budget, .. } = Requests::new(100 << 20);
        let mut entry = Entry::new(budget.clone(), Owner::User(1));
        assert!(matches!(entry.ask(SLOWEST * 10, Waker::noop()), Room::Given));
        pass(&budget, GRACE + Duration::from_secs(9));
        assert!(!entry.is_over(Waker::noop()));
        pass(&budget, Duration::from_secs(1));
        assert!(entry.is_over(Waker::noop()));
    }
}
