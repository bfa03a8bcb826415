//! Reads the bits of coded data, and the Huffman codes among them.

/// The reason why nothing more can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The data end here, at a marker or at the end of the file.
    Ended,
    /// No code begins with these bits, or the code has no valid meaning here.
    Damaged,
}

/// The number of bits that are read at once to look up a code.
const LOOK: u32 = 9;

/// The number of bits that are read at once to look up a code and a number.
const AHEAD: u32 = 10;

/// The number of `size` bits, at most 15, with which `bits` begins. Numbers whose first bit is 0 are negative.
#[inline(always)]
fn number(bits: u64, size: u32) -> i32 {
    // Shifts in two steps, because a single shift by 64 would overflow.
    let number = (bits >> 32 >> (32 - size)) as i32;
    let negative = (number >> (size.max(1) - 1)) - 1;
    number + (negative & (1 - (1 << size)))
}

/// A Huffman table.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// The length and the symbol of the code that begins with these [`LOOK`] bits. The length is 0 if the code is
    /// longer than that.
    short: Vec<(u8, u8)>,
    /// For these [`AHEAD`] bits that begin with a code and the whole of the number that follows it: the length of both,
    /// the symbol and the number. The length is 0 if they are longer than that.
    whole: Vec<(u8, u8, i16)>,
    /// For each length: the code after the last one, shifted to 16 bits, and the difference between the index of a
    /// symbol and its code.
    ends: [(u32, i32); 17],
    symbols: Vec<u8>,
}

impl Table {
    /// The table for `counts[i]` codes of `i + 1` bits each, and their symbols. Returns `None` if there cannot be that
    /// many codes, or if symbols are missing.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Option<Table> {
        let mut table =
            Table { short: vec![(0, 0); 1 << LOOK], whole: Vec::new(), ends: [(0, 0); 17], symbols: symbols.to_vec() };
        let (mut code, mut place) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            let count = usize::from(count);
            table.ends[length as usize].1 = place as i32 - code as i32;
            for &symbol in symbols.get(place..place + count)? {
                if length <= LOOK {
                    let from = (code << (LOOK - length)) as usize;
                    table.short.get_mut(from..from + (1 << (LOOK - length)))?.fill((length as u8, symbol));
                }
                code += 1;
            }
            if code > 1 << length {
                return None;
            }
            place += count;
            table.ends[length as usize].0 = code << (16 - length);
            code <<= 1;
        }
        let whole = |bits: u32| {
            let bits = bits << (16 - AHEAD);
            let (length, symbol) = table.find(bits).filter(|&(length, _)| length <= AHEAD)?;
            let size = u32::from(symbol & 15);
            let number = number(u64::from(bits) << 48 << length, size);
            (length + size <= AHEAD).then_some(((length + size) as u8, symbol, number as i16))
        };
        table.whole = (0..1 << AHEAD).map(|bits| whole(bits).unwrap_or_default()).collect();
        Some(table)
    }

    /// The length and the symbol of the code with which these 16 bits begin.
    #[inline]
    fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let (length, symbol) = self.short[(bits >> (16 - LOOK)) as usize];
        if length > 0 {
            return Some((u32::from(length), symbol));
        }
        let length = (LOOK + 1..=16).find(|&l| bits < self.ends[l as usize].0)?;
        let place = (bits >> (16 - length)) as i32 + self.ends[length as usize].1;
        Some((length, *self.symbols.get(usize::try_from(place).ok()?)?))
    }
}

/// Reads the bits of coded data up to the next marker. In coded data, `FF 00` stands for the byte `FF`.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The position of the first byte that is not in `held` yet.
    at: usize,
    /// The bits that have been read ahead: `count` bits at the upper end, followed by bits of the next byte or zeros.
    held: u64,
    count: u32,
    /// Whether there is a marker or the end of the file at `at`.
    ended: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Bits { bytes, at, held: 0, count: 0, ended: false }
    }

    /// Reads ahead until there are more than 56 bits, or up to the end of the data.
    #[inline]
    fn fill(&mut self) {
        if let Some(eight) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_be_bytes(*eight);
            // The upper bit of a byte of `ones` is 1 if that byte of `word` is FF (or, after such a byte, FE).
            let ones = (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080;
            if ones == 0 {
                let whole = (64 - self.count) / 8;
                // Bits of the byte after the last whole one may come along. They are read again with their byte.
                self.held |= word.checked_shr(self.count).unwrap_or(0);
                self.count += 8 * whole;
                self.at += whole as usize;
                return;
            }
        }
        self.fill_bytewise();
    }

    fn fill_bytewise(&mut self) {
        while self.count <= 56 && !self.ended {
            let byte = match self.bytes.get(self.at) {
                Some(0xff) => {
                    let after = self.bytes[self.at..].iter().position(|&b| b != 0xff).map(|n| self.at + n);
                    match after.filter(|&after| self.bytes[after] == 0) {
                        Some(zero) => self.at = zero,
                        None => self.ended = true,
                    }
                    0xff
                }
                Some(&byte) => byte,
                None => {
                    self.ended = true;
                    0
                }
            };
            if !self.ended {
                self.held |= u64::from(byte) << (56 - self.count);
                self.count += 8;
                self.at += 1;
            }
        }
    }

    fn drop_bits(&mut self, count: u32) {
        self.held <<= count;
        self.count -= count;
    }

    /// Reads the next `count` bits, at most 16.
    pub(super) fn take(&mut self, count: u32) -> Result<u32, Fault> {
        if self.count < count {
            self.fill();
        }
        if self.count < count {
            return Err(Fault::Ended);
        }
        // Shifts in two steps, because a single shift by 64 (for a `count` of 0) would overflow.
        let bits = (self.held >> 32 >> (32 - count)) as u32;
        self.drop_bits(count);
        Ok(bits)
    }

    /// Reads the next code and returns its symbol.
    pub(super) fn code(&mut self, table: &Table) -> Result<u8, Fault> {
        if self.count < 16 {
            self.fill();
        }
        match table.find((self.held >> 48) as u32) {
            Some((length, symbol)) if length <= self.count => {
                self.drop_bits(length);
                Ok(symbol)
            }
            None if self.count >= 16 => Err(Fault::Damaged),
            _ => Err(Fault::Ended),
        }
    }

    /// Reads the next code and the number that follows it, and returns the symbol and the number. The lower four bits of
    /// the symbol are the length of the number (section F.1.2.1 of <https://www.w3.org/Graphics/JPEG/itu-t81.pdf>).
    #[inline(always)]
    pub(super) fn coefficient(&mut self, table: &Table) -> Result<(u8, i32), Fault> {
        // A code and its number have at most 31 bits.
        if self.count < 32 {
            self.fill();
        }
        let (total, symbol, value) = table.whole[(self.held >> (64 - AHEAD)) as usize];
        let total = u32::from(total);
        if total > 0 && total <= self.count {
            self.drop_bits(total);
            return Ok((symbol, i32::from(value)));
        }
        let Some((length, symbol)) = table.find((self.held >> 48) as u32) else {
            return Err(if self.count >= 16 { Fault::Damaged } else { Fault::Ended });
        };
        let size = u32::from(symbol & 15);
        if length + size > self.count {
            return Err(Fault::Ended);
        }
        let value = number(self.held << length, size);
        self.drop_bits(length + size);
        Ok((symbol, value))
    }

    /// Skips to the position after the next marker and returns the marker, if there is one.
    pub(super) fn marker(&mut self) -> Option<u8> {
        (self.held, self.count, self.ended) = (0, 0, false);
        let (marker, at) = next_marker(self.bytes, self.at)?;
        self.at = at;
        Some(marker)
    }

    /// The position after the bits that were read, or one a little after it.
    pub(super) fn at(&self) -> usize {
        self.at
    }
}

/// The next marker at or after `at`, and the position after it.
pub(super) fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&b| b == 0xff)? + 1;
        match bytes.get(at)? {
            0 | 0xff => {}
            &marker => return Some((marker, at + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_all_lengths_are_found() {
        // The codes are 0, 10, 110, .. of 1 to 16 bits. A sequence of ones is not a code.
        let table = Table::new(&[1; 16], &(0..16).collect::<Vec<u8>>()).unwrap();
        for length in 1..=16u32 {
            let code = ((1u32 << (length - 1)) - 1) << (17 - length);
            let bytes = [(code >> 8) as u8, code as u8, 0, 0];
            // In coded data, a zero byte follows a byte of ones.
            let stuffed: Vec<u8> = bytes.iter().flat_map(|&b| if b == 0xff { vec![b, 0] } else { vec![b] }).collect();
            let mut bits = Bits::new(&stuffed, 0);
            assert_eq!(bits.code(&table), Ok(length as u8 - 1));
            assert_eq!(bits.take(16 - length), Ok(0));
        }
        assert_eq!(Bits::new(&[0xff, 0, 0xff, 0], 0).code(&table), Err(Fault::Damaged));
        assert_eq!(Bits::new(&[0xff, 0, 0xff, 0xd9], 0).code(&table), Err(Fault::Ended));
        assert!(Table::new(&[3; 16], &[0; 48]).is_none());
        assert!(Table::new(&[1; 16], &[0; 15]).is_none());
    }

    #[test]
    fn bits_end_at_a_marker() {
        let bytes = [0xa5, 0xff, 0, 0x0f, 0xff, 0xff, 0xd3, 0x77];
        let mut bits = Bits::new(&bytes, 0);
        assert_eq!((bits.take(4), bits.take(16), bits.take(4)), (Ok(10), Ok(0x5ff0), Ok(15)));
        assert_eq!(bits.take(1), Err(Fault::Ended));
        assert_eq!((bits.marker(), bits.at(), bits.take(8)), (Some(0xd3), 7, Ok(0x77)));
        assert_eq!((bits.take(1), bits.marker()), (Err(Fault::Ended), None));
    }
}
