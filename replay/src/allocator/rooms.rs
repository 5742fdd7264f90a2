//! Finds the newest chunk that has enough room.
//!
//! The room of a chunk is the size of its largest hole. Guarantees: a query or a change of a chunk takes time
//! proportional to the logarithm of the number of chunks. When all leaves are in use, adding a chunk rebuilds the tree,
//! which takes time proportional to the number of chunks. The memory is proportional to the number of chunks. This
//! module does not know where in a chunk the hole is.

/// A tree of maxima over chunks in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    /// For each leaf: the number of its chunk, ascending, and whether the chunk still exists.
    chunks: Vec<(u32, bool)>,
    gone: usize,
    /// For each node: the largest room of the leaves below it. The root is node 1. The children of node n are 2n and 2n
    /// + 1.
    largest: Vec<u64>,
}

impl Rooms {
    fn leaves(&self) -> usize {
        self.largest.len() / 2
    }

    fn leaf(&self, number: u32) -> Option<usize> {
        self.chunks.binary_search_by_key(&number, |&(number, _)| number).ok()
    }

    /// Adds a chunk. Its number must be higher than all numbers so far.
    pub fn add(&mut self, number: u32, room: u64) {
        debug_assert!(self.chunks.last().is_none_or(|&(last, _)| last < number), "numbers rise");
        if self.chunks.len() == self.leaves() {
            self.rebuild();
        }
        self.chunks.push((number, true));
        self.put(self.chunks.len() - 1, room);
    }

    /// Sets the room of a chunk.
    pub fn set(&mut self, number: u32, room: u64) {
        if let Some(leaf) = self.leaf(number) {
            self.put(leaf, room);
        }
    }

    /// Removes a chunk.
    pub fn remove(&mut self, number: u32) {
        if let Some(leaf) = self.leaf(number)
            && std::mem::replace(&mut self.chunks[leaf].1, false)
        {
            self.gone += 1;
            self.put(leaf, 0);
        }
    }

    /// The newest chunk with at least this much room. A chunk without room never matches.
    pub fn newest(&self, room: u64) -> Option<u32> {
        let room = room.max(1);
        if self.largest.get(1).is_none_or(|&most| most < room) {
            return None;
        }
        let (mut node, leaves) = (1, self.leaves());
        while node < leaves {
            // Newer chunks are to the right.
            node = 2 * node + usize::from(self.largest[2 * node + 1] >= room);
        }
        self.chunks.get(node - leaves).map(|&(number, _)| number)
    }

    fn put(&mut self, leaf: usize, room: u64) {
        let mut node = self.leaves() + leaf;
        self.largest[node] = room;
        while node > 1 {
            node /= 2;
            let most = self.largest[2 * node].max(self.largest[2 * node + 1]);
            if self.largest[node] == most {
                break;
            }
            self.largest[node] = most;
        }
    }

    /// Rebuilds the tree without removed chunks. It gets at least twice as many leaves as there are chunks, rounded up
    /// to a power of two.
    fn rebuild(&mut self) {
        let (old, leaves) = (self.leaves(), (2 * (self.chunks.len() - self.gone)).next_power_of_two().max(2));
        let rooms: Vec<(u32, u64)> = (self.chunks.iter().zip(&self.largest[old..]))
            .filter(|((_, is_there), _)| *is_there)
            .map(|(&(number, _), &room)| (number, room))
            .collect();
        self.chunks = rooms.iter().map(|&(number, _)| (number, true)).collect();
        self.gone = 0;
        self.largest = vec![0; 2 * leaves];
        for (leaf, &(_, room)) in rooms.iter().enumerate() {
            self.largest[leaves + leaf] = room;
        }
        for node in (1..leaves).rev() {
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a map that is searched from its end.
        #[test]
        fn the_newest_with_room_is_found(steps in prop::collection::vec((0..4_u32, 0..40_u32, 0..50_u64), 0..400)) {
            let (mut rooms, mut model, mut made) = (Rooms::default(), BTreeMap::new(), 0);
            for (what, number, room) in steps {
                match what {
                    0 => {
                        made += 1;
                        rooms.add(made, room);
                        model.insert(made, room);
                    }
                    1 => {
                        rooms.remove(number);
                        model.remove(&number);
                    }
                    _ => {
                        if let Some(known) = model.get_mut(&number) {
                            *known = room;
                            rooms.set(number, room);
                        }
                    }
                }
                for least in [1, room.max(1), 45] {
                    let newest = model.iter().rev().find(|(_, has)| **has >= least).map(|(&number, _)| number);
                    prop_assert_eq!(rooms.newest(least), newest);
                }
            }
            for number in model.into_keys() {
                rooms.remove(number);
            }
            for number in made + 1..made + 1000 {
                rooms.add(number, 1);
                rooms.remove(number);
            }
            prop_assert!(rooms.leaves() <= 256, "what is gone takes no memory: {}", rooms.leaves());
        }
    }
}
