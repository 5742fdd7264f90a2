//! The subject of a refused call for the audit log: the job, token, silence or receiver that its request names.
//!
//! Guarantees: reads at most [`BYTES_MAX`] bytes of a request and waits at most [`WAIT`] for them. The subject is empty
//! if the request is longer, compressed or not readable, or if the call names nothing.

use std::time::Duration;

use http_body_util::BodyExt as _;
use memctl_proto::v1;
use prost::Message as _;
use tonic::body::Body;

/// Limit of the bytes of a request that are read.
const BYTES_MAX: usize = 8 * 1024;
/// Limit of the time that reading may take.
const WAIT: Duration = Duration::from_secs(1);
/// The bytes before a message of gRPC: one is 1 if the message is compressed, four are its length.
const HEAD: usize = 5;

/// The subject of a gRPC call, from the first message of its body.
pub async fn of_call(path: &str, body: &mut Body) -> String {
    let read = tokio::time::timeout(WAIT, message(body)).await;
    read.ok().flatten().and_then(|message| of_message(path, &message)).unwrap_or_default()
}

async fn message(body: &mut Body) -> Option<Vec<u8>> {
    let mut read: Vec<u8> = Vec::new();
    loop {
        if let Some((head, rest)) = read.split_at_checked(HEAD) {
            let length = u32::from_be_bytes(head[1..].try_into().ok()?) as usize;
            if head[0] != 0 || length > BYTES_MAX {
                return None;
            }
            if let Some(message) = rest.get(..length) {
                return Some(message.to_vec());
            }
        }
        let data = body.frame().await?.ok()?.into_data().ok()?;
        let free = HEAD + BYTES_MAX - read.len();
        read.extend_from_slice(data.get(..free).unwrap_or(&data));
    }
}

fn of_message(path: &str, message: &[u8]) -> Option<String> {
    let subject = match path {
        "/memctl.v1.Query/DeleteJob" => {
            let request = v1::DeleteJobRequest::decode(message).ok()?;
            of_deletion(&request.job, request.attempt)
        }
        "/memctl.v1.Query/FindHolders" => v1::HoldersRequest::decode(message).ok()?.selection?.job,
        "/memctl.v1.Access/CreateToken" => v1::CreateTokenRequest::decode(message).ok()?.name,
        "/memctl.v1.Access/RevokeToken" => v1::RevokeTokenRequest::decode(message).ok()?.token,
        "/memctl.v1.Alerts/AddSilence" => of_silence(&v1::AddSilenceRequest::decode(message).ok()?.silence?),
        "/memctl.v1.Alerts/RemoveSilence" => v1::RemoveSilenceRequest::decode(message).ok()?.id,
        "/memctl.v1.Alerts/TestReceivers" => of_test(v1::TestReceiversRequest::decode(message).ok()?.receiver),
        _ => return None,
    };
    Some(subject)
}

/// A deletion: the job, and the attempt if only one is deleted.
#[must_use]
pub fn of_deletion(job: &str, attempt: Option<u32>) -> String {
    attempt.map_or_else(|| job.to_owned(), |attempt| format!("{job} (attempt {attempt})"))
}

/// A test of receivers: the receiver, or all.
#[must_use]
pub fn of_test(receiver: Option<String>) -> String {
    receiver.unwrap_or_else(|| "all".to_owned())
}

/// A silence: the conditions that it has.
#[must_use]
pub fn of_silence(silence: &v1::Silence) -> String {
    let v1::Silence { job, kind, rule, ranks, .. } = silence;
    let texts = [("job", job), ("kind", kind), ("rule", rule)].into_iter().filter(|(_, text)| !text.is_empty());
    let mut conditions: Vec<String> = texts.map(|(name, text)| format!("{name} {text:?}")).collect();
    if !ranks.is_empty() {
        let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
        conditions.push(format!("rank {}", ranks.join(",")));
    }
    if conditions.is_empty() { "all alerts".to_owned() } else { conditions.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(message: &[u8], chunk: usize) -> Body {
        let mut bytes = vec![0];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(message);
        let frames: Vec<Result<_, tonic::Status>> = bytes
            .chunks(chunk)
            .map(|chunk| Ok(hyper::body::Frame::data(bytes::Bytes::copy_from_slice(chunk))))
            .collect();
        Body::new(http_body_util::StreamBody::new(tokio_stream::iter(frames)))
    }

    #[tokio::test]
    async fn a_request_names_its_subject_in_whatever_pieces_it_arrives() {
        let silence = v1::Silence { job: "vit".into(), ranks: vec![0, 2], ..v1::Silence::default() };
        let requests = [
            (
                "Query/DeleteJob",
                v1::DeleteJobRequest { job: "vit".into(), ..Default::default() }.encode_to_vec(),
                "vit",
            ),
            (
                "Access/CreateToken",
                v1::CreateTokenRequest { name: "x".into(), ..Default::default() }.encode_to_vec(),
                "x",
            ),
            ("Access/RevokeToken", v1::RevokeTokenRequest { token: "v".into() }.encode_to_vec(), "v"),
            (
                "Alerts/AddSilence",
                v1::AddSilenceRequest { silence: Some(silence), for_ns: 1 }.encode_to_vec(),
                "job \"vit\", rank 0,2",
            ),
            ("Alerts/TestReceivers", Vec::new(), "all"),
            ("Access/ListTokens", Vec::new(), ""),
        ];
        for (call, message, subject) in requests {
            for chunk in [1, 3, 1_000] {
                let found = of_call(&format!("/memctl.v1.{call}"), &mut body(&message, chunk)).await;
                assert_eq!(found, subject, "{call} in pieces of {chunk} bytes");
            }
        }
    }

    #[tokio::test]
    async fn a_long_or_broken_request_has_no_subject() {
        let long = v1::RevokeTokenRequest { token: "v".repeat(BYTES_MAX) }.encode_to_vec();
        for message in [long.as_slice(), &[0xff; 20]] {
            assert_eq!(of_call("/memctl.v1.Access/RevokeToken", &mut body(message, 1_000)).await, "");
        }
        assert_eq!(of_call("/memctl.v1.Access/RevokeToken", &mut Body::empty()).await, "");
    }
}
