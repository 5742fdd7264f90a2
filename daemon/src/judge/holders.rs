//! What processes were asked about the holders of tensors: kept with the job, and told beside the findings that it is about.
//!
//! Guarantees: an answer that cannot be read costs itself and no finding. Refuses answers of processes whose place another
//! one has taken: what they held is gone.

use memctl_analysis::explained::explains;
use memctl_analysis::holders::of_finding;
use memctl_model::{Finding, HoldersAsked, StackId};
use memctl_proto::convert::holders::{STACKS_MAX, from_kept};
use memctl_proto::{StackDictionary, v1};
use prost::Message as _;

use crate::clock::now_ns;
use crate::read::Found;
use crate::store::{HoldersRow, SessionKey, SessionRow, Store, StoreError};

/// Keeps what came of an ask.
///
/// # Errors
/// The store fails.
pub(crate) async fn keep(store: &dyn Store, session: SessionKey, asked: &v1::HoldersAsked) -> Result<(), StoreError> {
    store.put_holders(&HoldersRow { session, asked_ns: now_ns(), answer: asked.encode_to_vec().into() }).await
}

/// What processes of a job were asked, the oldest first.
///
/// # Errors
/// The store fails.
pub(super) async fn kept(store: &dyn Store, found: &Found) -> Result<Vec<(SessionKey, HoldersAsked)>, StoreError> {
    let mut asked = Vec::new();
    for HoldersRow { session: key, asked_ns, answer } in store.holders(found.job.key).await? {
        let Some(session) = found.sessions.iter().find(|session| session.key == key) else { continue };
        let who = (session.info.rank, found.process_name(session));
        let read = v1::HoldersAsked::decode(answer).map_err(|error| error.to_string());
        match read.and_then(|kept| from_kept(kept, who, asked_ns).map_err(|error| error.to_string())) {
            Ok(read) => asked.push((key, read)),
            Err(error) => tracing::warn!(session = key, error, "an answer about holders cannot be read"),
        }
    }
    asked.sort_by_key(|(_, asked)| asked.asked_ns);
    Ok(asked)
}

/// Tells beside each finding what its processes answered.
///
/// # Errors
/// The store fails.
pub(super) async fn tell(store: &dyn Store, found: &Found, findings: &mut [Finding]) -> Result<(), StoreError> {
    if !findings.iter().any(may_be_asked_about) {
        return Ok(());
    }
    let asked: Vec<HoldersAsked> = kept(store, found).await?.into_iter().map(|(_, asked)| asked).collect();
    for finding in findings.iter_mut().filter(|finding| may_be_asked_about(finding)) {
        let id = finding.fingerprint(&found.job.name).to_string();
        finding.holders = of_finding(finding, &id, &asked);
    }
    Ok(())
}

/// Whether a process can be asked what holds a finding's blocks.
pub(super) fn may_be_asked_about(finding: &Finding) -> bool {
    finding.kind.is_leak() && finding.site.is_some()
}

/// Whether a finding is about a process.
pub(crate) fn concerns(finding: &Finding, found: &Found, session: &SessionRow) -> bool {
    finding.ranks.contains(&session.info.rank)
        && (finding.processes.is_empty() || finding.processes.contains(&found.process_name(session)))
}

/// A process's stacks of what a finding is about, ascending.
pub(crate) fn stacks_of(dictionary: &StackDictionary, rank: u32, finding: &Finding) -> Vec<u32> {
    let ids = (1..=dictionary.len()).filter_map(|id| u32::try_from(id).ok());
    let is_of_it = |id: &u32| {
        dictionary
            .site(StackId(*id))
            .is_some_and(|frame| explains(finding, rank, frame, &dictionary.stack(StackId(*id)).frames))
    };
    ids.filter(is_of_it).take(STACKS_MAX).collect()
}
