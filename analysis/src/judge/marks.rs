//! A long history kept as an even choice of its moments.
//!
//! Guarantees: bounded; however long it lasts, what is kept lies evenly over the whole of it, the first and the last
//! moment among them, so that a history drawn from it is true over a million steps. Refuses to forget what a moment says of
//! all since the one before (a peak): what is left out is absorbed by the next that stays.

/// Maximum number of kept moments.
const MOST: usize = 4_096;

/// What may be left out.
pub(super) trait Moment: Clone {
    /// Takes over what an earlier moment that is left out says of more than itself.
    fn absorb(&mut self, _left_out: &Self) {}
}

/// See the module.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Marks<T> {
    kept: Vec<T>,
    most: usize,
    /// Every so many moments one stays.
    stride: u32,
    /// Moments since the last one that stays; if there are any, the last one of `kept` is there for the time being.
    since: u32,
}

impl<T: Moment> Marks<T> {
    /// None yet; at most `most` will be kept.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most: most.max(4), stride: 1, since: 0 }
    }

    /// Whether its parts fit each other.
    pub fn is_sound(&self) -> bool {
        self.stride > 0 && self.since < self.stride && self.kept.len() <= self.most && self.most <= MOST
    }

    pub fn push(&mut self, mut one: T) {
        if self.since > 0
            && let Some(last) = self.kept.pop()
        {
            one.absorb(&last);
        }
        self.kept.push(one);
        self.since = (self.since + 1) % self.stride;
        if self.kept.len() > self.most {
            self.thin();
        }
    }

    fn thin(&mut self) {
        let mut left_out: Option<T> = None;
        let last = self.kept.len() - 1;
        let mut even = Vec::with_capacity(self.most + 1);
        for (index, mut one) in self.kept.drain(..).enumerate() {
            if let Some(before) = left_out.take() {
                one.absorb(&before);
            }
            if index % 2 == 0 || index == last {
                even.push(one);
            } else {
                left_out = Some(one);
            }
        }
        self.kept = even;
        // Where the last moment that was to stay has gone, or is there for the time being alone, the next one that stays
        // is counted from the one before it.
        let stays = if self.since > 0 { last - 1 } else { last };
        if stays % 2 == 1 {
            self.since += self.stride;
        }
        self.stride = self.stride.saturating_mul(2);
    }

    /// What is kept, oldest first.
    pub fn all(&self) -> &[T] {
        &self.kept
    }

    pub fn first(&self) -> Option<&T> {
        self.kept.first()
    }

    pub fn last(&self) -> Option<&T> {
        self.kept.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number, and the highest of those since the one before.
    impl Moment for (u32, u32) {
        fn absorb(&mut self, left_out: &Self) {
            self.1 = self.1.max(left_out.1);
        }
    }

    #[test]
    fn a_million_moments_are_kept_evenly_and_no_peak_is_lost() {
        for most in [16, 17] {
            let mut marks = Marks::new(most);
            for at in 0..1_000_000 {
                marks.push((at, if at == 123_457 { 9 } else { 1 }));
                assert_eq!((marks.all()[0].0, marks.last()), (0, marks.all().last()));
            }
            let kept = marks.all();
            assert!((most / 2..=most).contains(&kept.len()), "{}", kept.len());
            assert_eq!(marks.last().map(|last| last.0), Some(999_999));
            let gaps: Vec<u32> = kept.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
            let (least, widest) = (gaps[..gaps.len() - 1].iter().min(), gaps.iter().max());
            assert_eq!(least, widest, "even: {gaps:?}");
            assert_eq!(kept.iter().filter(|it| it.1 == 9).count(), 1);
        }
    }
}
