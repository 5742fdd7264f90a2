//! A session's items, opened: its stacks, read once per question, and its tables.

use memctl_model::{Boundary, SiteTable};
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::ItemKind;
use memctl_proto::{StackDictionary, v1};

use super::error::ReadError;
use crate::store::{ItemRow, Selection, SessionKey, Store};

/// Opens a stored item.
pub(crate) fn open(session: SessionKey, row: &ItemRow) -> Result<Content, ReadError> {
    packed(session, row)?.open().map_err(ReadError::wire(session, row.seq))
}

/// The tables of a stored item that end one of these epochs, which are sorted; none if it holds no tables.
pub(crate) fn open_epoch_ends(session: SessionKey, row: &ItemRow, epochs: &[u32]) -> Result<Vec<SiteTable>, ReadError> {
    let Content::SiteTables(tables) = open(session, row)? else { return Ok(Vec::new()) };
    let wanted = |boundary, epoch| boundary == Boundary::EpochEnd && epochs.binary_search(&epoch).is_ok();
    tables.kept(wanted).map_err(ReadError::wire(session, row.seq))
}

fn packed(session: SessionKey, row: &ItemRow) -> Result<Packed, ReadError> {
    let kind = ItemKind::try_from(row.kind).map_err(|error| ReadError::damaged(session, row.seq, error))?;
    Ok(Packed { kind, payload: row.payload.clone(), unpacked_bytes: row.unpacked_bytes })
}

/// The batches of stacks of a session, as stored.
pub(crate) async fn batches(store: &dyn Store, session: SessionKey) -> Result<Vec<(u64, v1::StackBatch)>, ReadError> {
    let rows = store.items(session, ItemKind::Stacks, None, Selection::default()).await?;
    rows.iter()
        .filter_map(|row| match open(session, row) {
            Ok(Content::Stacks(batch)) => Some(Ok((row.seq, batch))),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
        .collect()
}

/// The dictionary of a session's stacks. Behind a batch that never came, stacks have no names.
pub(crate) async fn dictionary(store: &dyn Store, session: SessionKey) -> Result<StackDictionary, ReadError> {
    let mut dictionary = StackDictionary::default();
    for (seq, batch) in batches(store, session).await? {
        if let Err(error) = dictionary.add(&batch) {
            tracing::warn!(session, seq, %error, "stacks cannot be read; later ones have no names");
            break;
        }
    }
    Ok(dictionary)
}
