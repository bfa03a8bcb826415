//! Makes CSV tables with numbers in all notations, lines of all lengths, and text that is not a number.

use super::edit::edit;
use crate::random::Random;

/// Text that stands where a number should.
const WORDS: [&str; 26] = [
    "", " ", "nan", "inf", "-inf", "1e400", "-1e-400", "0x10", "1_000", "1.5.2", "--1", "+1", ".5", "5.", "1e", "1e+",
    "\"1\"", "\"a,b\"", "\"", "NULL", "1;2", "\t3\t", "१", "∞", "1 2", "\0",
];

const ENDS: [&str; 4] = ["\n", "\r\n", "\r", ""];

fn number(d: &mut Random) -> String {
    match d.below(4) {
        0 => d.below(1000).to_string(),
        1 => format!("{:e}", f32::from_bits(d.bits() as u32 & 0x7eff_ffff)),
        2 => format!("-{}.{}", d.below(50), d.below(1000)),
        _ => format!("{}", d.below(3)),
    }
}

fn table(d: &mut Random, odd: bool) -> String {
    let (rows, columns) = (1 + d.length(30), 1 + d.length(20));
    let end = if odd { d.of(&ENDS) } else { "\n" };
    let mut text = String::new();
    for _ in 0..rows {
        let columns = if odd && d.once_in(30) { columns + 1 } else { columns };
        let word = |d: &mut Random| if odd && d.once_in(60) { d.of(&WORDS).into() } else { number(d) };
        let row: Vec<String> = (0..columns).map(|_| word(d)).collect();
        text += &row.join(",");
        text += end;
    }
    text
}

/// A valid table, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    table(d, false).into_bytes()
}

/// A table with a truncated row, which must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let columns = 2 + d.below(9);
    let row = |count: usize| vec!["7"; count].join(",") + "\n";
    (row(columns).repeat(1 + d.below(9)) + &row(1 + d.below(columns - 1))).into_bytes()
}

/// A damaged table.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    let mut text = table(d, true).into_bytes();
    match d.below(12) {
        0 => drop(text.splice(0..0, *b"\xef\xbb\xbf")),
        1 => text = text.iter().flat_map(|&b| [b, 0]).collect(),
        2 => {
            // A long line: one long number, or many numbers.
            let count = d.length(3 << 20);
            let unit = d.of(&["9", "1,", " ", ",", "\"", "0.1"]);
            let at = d.below(text.len() + 1);
            text.splice(at..at, unit.repeat(count / unit.len()).into_bytes());
        }
        3 => text = text.repeat(1 + d.length(200)),
        _ => {}
    }
    (0..d.below(3)).for_each(|_| edit(&mut text, d));
    text
}
