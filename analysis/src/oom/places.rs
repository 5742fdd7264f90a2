//! Live memory by line of code when a request failed.

use memctl_model::Frame;

use super::SiteUse;

/// The live memory of one place.
pub(super) struct Place<'a> {
    pub site: Option<&'a Frame>,
    pub bytes: u64,
    pub blocks: u64,
    /// Growth since the end of the last step.
    pub grown: u64,
}

/// Live memory by place, most bytes first. Blocks that several stacks allocated at one line are at one place.
pub(super) fn by_place(sites: &[SiteUse]) -> Vec<Place<'_>> {
    let mut places: Vec<Place<'_>> = Vec::new();
    for site in sites {
        let (frame, grown) = (site.stack.site(), site.growth_bytes().unwrap_or(0));
        match places.iter_mut().find(|place| place.site == frame) {
            Some(place) => {
                place.bytes = place.bytes.saturating_add(site.bytes);
                place.blocks = place.blocks.saturating_add(site.blocks);
                place.grown = place.grown.saturating_add(grown);
            }
            None => places.push(Place { site: frame, bytes: site.bytes, blocks: site.blocks, grown }),
        }
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    places
}
