//! An evenly spread selection of the moments of a long history.
//!
//! Guarantees: memory is bounded. However long the history lasts, the kept moments are spread evenly over all of it
//! and include the first and the last. So a history drawn from them is accurate over a million steps. A moment may
//! contain a value for the whole time since the previous one (a peak). It is not lost: the next kept moment absorbs
//! it.

/// Maximum number of kept moments.
const MOST: usize = 4_096;

/// A moment that may be left out.
pub(super) trait Moment: Clone {
    /// Absorbs the values of an earlier moment that is left out and that apply to more than that moment.
    fn absorb(&mut self, _left_out: &Self) {}
}

/// The kept moments; see the module's documentation.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Marks<T> {
    kept: Vec<T>,
    most: usize,
    /// One in this many moments is kept.
    stride: u32,
    /// Number of moments since the last kept one. If it is above 0, the last entry of `kept` is only there
    /// temporarily.
    since: u32,
}

impl<T: Moment> Marks<T> {
    /// An empty history that will keep at most `most` moments.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most: most.max(4), stride: 1, since: 0 }
    }

    /// Whether its parts are consistent.
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
        // If the last moment to keep was removed, or is there only temporarily, the next kept one is counted from the
        // moment before it.
        let stays = if self.since > 0 { last - 1 } else { last };
        if stays % 2 == 1 {
            self.since += self.stride;
        }
        self.stride = self.stride.saturating_mul(2);
    }

    /// The kept moments, oldest first.
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

    /// A number, and the highest value since the previous moment.
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
