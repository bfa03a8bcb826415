//! [`Fingerprint`]: a hash by which a run that goes on recognises its data.

/// FNV-1a of 64 bits over words (Fowler, Noll and Vo). It tells changed data apart, and protects against no one.
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn new() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        // The product moves bits only upwards.
        self.0 ^= self.0 >> 32;
    }

    /// Adds a text and its length.
    pub(super) fn add_text(&mut self, text: &str) {
        self.add(text.len() as u64);
        text.bytes().for_each(|byte| self.add(u64::from(byte)));
    }

    pub(super) fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_differ_in_one_place_or_in_order_have_other_fingerprints() {
        let of = |texts: &[&str]| {
            let mut print = Fingerprint::new();
            texts.iter().for_each(|text| print.add_text(text));
            print.value()
        };
        let all = [of(&[]), of(&["ab"]), of(&["ba"]), of(&["a", "b"]), of(&["ab", ""]), of(&["aB"])];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
