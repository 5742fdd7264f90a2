//! The codec of every call. It is prost's, with a check before decoding of how much memory an agent's message will
//! take.
//!
//! The payload of an item is bounded by its length and is opened in separate stages. The agent's other messages are
//! hellos and answers about holders. In a hello, two bytes of an empty label become a hundred.
//! Guarantees: such a message takes at most [`HELLO_DECODED_BYTES_MAX`] after decoding. Larger ones are refused before
//! decoding.

use std::any::TypeId;
use std::marker::PhantomData;

use bytes::Buf as _;
use memctl_model::limits::HELLO_DECODED_BYTES_MAX;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::v1::AgentMessage;
use crate::weight::{AGENT_MESSAGE, weight};

/// Encodes `T` and decodes `U`.
#[derive(Clone, Debug)]
pub struct Bounded<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Bounded<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Bounded<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstDecoder::default())
    }
}

/// Decodes messages that passed the check.
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + 'static> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if TypeId::of::<U>() == TypeId::of::<AgentMessage>() {
            if buf.chunk().len() < buf.remaining() {
                return Err(Status::internal("the transport hands a message over in pieces, which cannot be weighed"));
            }
            check(buf.chunk())?;
        }
        self.0.decode(buf)
    }
}

fn check(bytes: &[u8]) -> Result<(), Status> {
    let taken = weight("an agent's message", &AGENT_MESSAGE, bytes)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    if taken > HELLO_DECODED_BYTES_MAX as u64 {
        return Err(Status::resource_exhausted(format!(
            "a message would take {taken} bytes of memory, of which it may take {HELLO_DECODED_BYTES_MAX}: a hello with too many devices or labels, or an answer that names too much"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{
        DeviceInfo, Hello, HoldersAnswer, HoldersFound, Item, Label, SessionInfo, TensorHolder, agent_message::Body,
        holders_answer,
    };

    fn said(session: SessionInfo) -> Vec<u8> {
        let hello = Hello { session: Some(session), secret: vec![7; 16], ..Hello::default() };
        AgentMessage { body: Some(Body::Hello(hello)) }.encode_to_vec()
    }

    #[test]
    fn a_hello_as_large_as_one_may_be_passes() {
        use memctl_model::limits::{DEVICES_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX};
        let name = "n".repeat(NAME_BYTES_MAX);
        let label = Label { key: "k".repeat(LABEL_BYTES_MAX), value: "v".repeat(LABEL_BYTES_MAX) };
        let device = DeviceInfo { uuid: Some(name.clone()), name: Some(name.clone()), ..DeviceInfo::default() };
        let session = SessionInfo {
            job: name.clone(),
            host: Some(name.clone()),
            devices: vec![device; DEVICES_MAX],
            labels: vec![label; LABELS_MAX],
            ..SessionInfo::default()
        };
        check(&said(session)).unwrap();
    }

    #[test]
    fn a_hello_of_empty_labels_is_refused_and_a_large_item_is_not() {
        let many = SessionInfo { labels: vec![Label::default(); 1 << 20], ..SessionInfo::default() };
        let refused = check(&said(many)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("too many devices or labels"), "{refused}");
        let found = HoldersFound { holders: vec![TensorHolder::default(); 1 << 20], ..HoldersFound::default() };
        let answer = HoldersAnswer { id: 1, body: Some(holders_answer::Body::Found(found)) };
        let refused = check(&AgentMessage { body: Some(Body::Holders(answer)) }.encode_to_vec()).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let item = Item { seq: 1, payload: vec![0; 8 << 20].into(), ..Item::default() };
        check(&AgentMessage { body: Some(Body::Item(item)) }.encode_to_vec()).unwrap();
    }
}
