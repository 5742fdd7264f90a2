//! Decodes a session's items: its stacks, which are read once per request, and its tables.

use memctl_model::{Boundary, SiteTable};
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::ItemKind;
use memctl_proto::{StackDictionary, v1};

use super::error::ReadError;
use crate::store::{ItemRow, SessionKey, Store};

/// Decodes a stored item.
pub(crate) fn open(session: SessionKey, row: &ItemRow) -> Result<Content, ReadError> {
    packed(session, row)?.open().map_err(ReadError::wire(session, row.seq))
}

/// The tables of a stored item that end one of these epochs. `epochs` must be sorted. The result is empty if the item
/// has no tables.
pub(crate) fn open_epoch_ends(session: SessionKey, row: &ItemRow, epochs: &[u32]) -> Result<Vec<SiteTable>, ReadError> {
    let Content::SiteTables(tables) = open(session, row)? else { return Ok(Vec::new()) };
    let wanted = |boundary, epoch| boundary == Boundary::EpochEnd && epochs.binary_search(&epoch).is_ok();
    tables.kept(wanted).map_err(ReadError::wire(session, row.seq))
}

fn packed(session: SessionKey, row: &ItemRow) -> Result<Packed, ReadError> {
    let kind = ItemKind::try_from(row.kind).map_err(|error| ReadError::damaged(session, row.seq, error))?;
    Ok(Packed { kind, payload: row.payload.clone(), unpacked_bytes: row.unpacked_bytes })
}

/// Items read at once; [`PAGE_BYTES`](crate::store::PAGE_BYTES) bounds their bytes.
const PAGE: u32 = 512;

/// The stored batches of a session's stacks, read one page at a time. Only one batch is unpacked in memory.
pub(crate) struct Batches<'a> {
    store: &'a dyn Store,
    session: SessionKey,
    page: std::vec::IntoIter<ItemRow>,
    /// The item after which the next page begins; `None` after the last page.
    next: Option<u64>,
}

impl<'a> Batches<'a> {
    pub fn of(store: &'a dyn Store, session: SessionKey) -> Self {
        Self { store, session, page: Vec::new().into_iter(), next: Some(0) }
    }

    /// The next batch and its number.
    pub async fn next(&mut self) -> Result<Option<(u64, v1::StackBatch)>, ReadError> {
        loop {
            if let Some(row) = self.page.next() {
                if let Content::Stacks(batch) = open(self.session, &row)? {
                    return Ok(Some((row.seq, batch)));
                }
            } else if let Some(after) = self.next {
                let page = self.store.items_after(self.session, ItemKind::Stacks, after, PAGE).await?;
                (self.page, self.next) = (page.items.into_iter(), page.looked_to);
            } else {
                return Ok(None);
            }
        }
    }
}

/// The dictionary of a session's stacks. After a missing batch, stacks have no names.
pub(crate) async fn dictionary(store: &dyn Store, session: SessionKey) -> Result<StackDictionary, ReadError> {
    let mut dictionary = StackDictionary::default();
    let mut batches = Batches::of(store, session);
    while let Some((seq, batch)) = batches.next().await? {
        if let Err(error) = dictionary.add(&batch) {
            tracing::warn!(session, seq, %error, "stacks cannot be read; later stacks have no names");
            break;
        }
    }
    Ok(dictionary)
}
