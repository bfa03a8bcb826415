//! Parsers for numbers on the command line that several commands share.

pub(crate) fn number(text: &str, from: usize, to: usize) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|n| (from..=to).contains(n));
    number.ok_or_else(|| format!("give a whole number from {from} to {to}"))
}

/// A share from 0 to 1.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 to 1, such as 0.1".into())
}

pub(crate) fn threads(text: &str) -> Result<usize, String> {
    number(text, 1, 1024)
}

/// Parses a number of bytes: a whole number, with or without a unit.
pub(crate) fn memory(text: &str) -> Result<usize, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[end..].trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let bytes = text[..end].parse::<usize>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(1 << unit));
    bytes.filter(|&n| n > 0).ok_or_else(|| "give a number of bytes above 0, such as 1000000, 512MiB or 2GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_none() {
        let sizes = ["1000", "1k", "3 KiB", "512MiB", "2g", "7B"].map(memory);
        assert_eq!(sizes, [Ok(1000), Ok(1024), Ok(3072), Ok(512 << 20), Ok(2 << 30), Ok(7)]);
        for text in ["", "0", "-1", "GiB", "1.5GiB", "1TB", "1 K B", "99999999999999999999", "9999999999999GiB"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
