//! Text in HTML: escaping, numbers, and bytes as base64.

use std::fmt::Write;

/// Escapes the characters that have a meaning in HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number with four significant digits, without trailing zeros.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    let size = value.abs();
    if !(1e-4..1e6).contains(&size) {
        let text = format!("{value:.2e}");
        return text.replace(".00e", "e").replace('-', "\u{2212}");
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 8) as usize;
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.replace('-', "\u{2212}")
}

/// Bytes as base64, for the data URL of a picture.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().chain([0, 0].iter()).take(3).fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= three.len() { digit as char } else { '=' });
        }
    }
    out
}

/// Appends to a text. Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => {
        { let _ = write!($out, $($text)*); }
    };
}
pub(super) use put;

/// A list of numbers for the script of the page, with at most 6 significant digits.
pub(super) fn list(values: impl Iterator<Item = f64>) -> String {
    let mut out = String::from("[");
    for (i, value) in values.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        match value.is_finite() {
            true => put!(out, "{comma}{}", format!("{value:.5e}").parse().unwrap_or(value)),
            false => put!(out, "{comma}null"),
        }
    }
    out + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 1.0, 0.123456, 12.3456, 1234.56, 123456.7, 1e7, 2.5e-7, -0.5, 99.99999].map(short);
        assert_eq!(all, ["0", "1", "0.1235", "12.35", "1235", "123457", "1e7", "2.50e\u{2212}7", "\u{2212}0.5", "100"]);
        assert_eq!(list([1.0, f64::NAN, 0.1234567, 1e-9].into_iter()), "[1,null,0.123457,0.000000001]");
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn what_html_would_read_is_escaped() {
        assert_eq!(escaped("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
    }
}
