//! Whether a file is all there: decoders fill in what is missing at the end, and nobody notices.

use super::Format;

/// Whether the file goes on to its format's end mark.
pub(super) fn is_whole(bytes: &[u8], format: Format) -> bool {
    match format {
        Format::Png => png(bytes),
        Format::Jpeg => jpeg(bytes),
    }
    .is_some()
}

/// A chunk is a length, a name of four letters, contents and a checksum; the last one is `IEND`.
fn png(bytes: &[u8]) -> Option<()> {
    let mut rest = bytes.get(8..)?;
    loop {
        let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?);
        let name = rest.get(4..8)?;
        rest = rest.get(usize::try_from(length).ok()?.checked_add(12)?..)?;
        if name == b"IEND" {
            return Some(());
        }
    }
}

/// A segment is a mark (`FF` and its kind) and most often a length and contents; coded data follow a start of scan, and in
/// them `FF` is followed by 0 or is a restart. The last mark is `FF D9`.
fn jpeg(bytes: &[u8]) -> Option<()> {
    let mut at = 2;
    loop {
        // To the next mark; what lies between marks is coded data.
        while *bytes.get(at)? != 0xff || matches!(*bytes.get(at + 1)?, 0 | 0xff | 0xd0..=0xd7) {
            at += 1;
        }
        match bytes.get(at + 1)? {
            0xd9 => return Some(()),
            0xd8 | 0x01 => at += 2,
            _ => {
                let length = u16::from_be_bytes([*bytes.get(at + 2)?, *bytes.get(at + 3)?]);
                at += 2 + usize::from(length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_mark_within_a_segment_is_none() {
        let start = [0xff, 0xd8, 0xff, 0xe0, 0, 4, 0xff, 0xd9];
        assert!(!is_whole(&start, Format::Jpeg));
        let scan = [&start[..], &[0xff, 0xda, 0, 2, 7, 0xff, 0, 0xff, 0xd0, 9, 0xff, 0xff, 0xd9]].concat();
        assert!(is_whole(&scan, Format::Jpeg));
        for end in 0..scan.len() {
            assert!(!is_whole(&scan[..end], Format::Jpeg), "{end}");
        }
    }
}
