//! Splits Rust text into code, comments and literals. Lines and columns are kept.
//!
//! This is a scanner, not a parser. It knows where comments, strings and characters begin and end, which is all that
//! the checks need to avoid mistaking prose for code.

/// A Rust file and several views of it. Each view has the length and line breaks of `text`; what it leaves out is
/// blank.
pub(super) struct Source {
    /// The path relative to the root, with `/`.
    pub(super) path: String,
    /// The whole file.
    pub(super) text: String,
    /// The code, without the contents of literals.
    pub(super) code: String,
    /// Only the comments.
    pub(super) comments: String,
    /// Code and comments, without the contents of literals.
    pub(super) code_and_comments: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Source {
        let classes = classify(text.as_bytes());
        Source {
            path: path.into(),
            text: text.into(),
            code: view(text, &classes, |class| class == Class::Code),
            comments: view(text, &classes, |class| class == Class::Comment),
            code_and_comments: view(text, &classes, |class| class != Class::Literal),
        }
    }

    /// The line of a byte offset, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        line_of(&self.text, offset)
    }
}

/// Blanks every byte whose class is not kept. All bytes of a character have the same class, so the result is valid
/// UTF-8.
fn view(text: &str, classes: &[Class], keep: impl Fn(Class) -> bool) -> String {
    let blanked = |(&byte, &class): (&u8, &Class)| if byte == b'\n' || keep(class) { byte } else { b' ' };
    let bytes: Vec<u8> = text.as_bytes().iter().zip(classes).map(blanked).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The class of every byte. The quotes of a literal count as code, its contents do not.
fn classify(bytes: &[u8]) -> Vec<Class> {
    let mut classes = vec![Class::Code; bytes.len()];
    let mut mark = |range: std::ops::Range<usize>, class: Class| {
        let end = range.end.min(bytes.len());
        if let Some(part) = classes.get_mut(range.start..end) {
            part.fill(class);
        }
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let after_word = at > 0 && is_word(bytes[at - 1]);
        if rest.starts_with(b"//") {
            let length = find(rest, b"\n").unwrap_or(rest.len());
            mark(at..at + length, Class::Comment);
            at += length;
        } else if rest.starts_with(b"/*") {
            let length = block_comment(rest);
            mark(at..at + length, Class::Comment);
            at += length;
        } else if let Some(contents) = raw_string(rest).filter(|_| !after_word) {
            mark(at + contents.start..at + contents.end, Class::Literal);
            // The hashes that follow the closing quote are then passed over as code.
            at += contents.end + 1;
        } else if rest[0] == b'"' {
            let contents = quoted(&rest[1..], b'"');
            mark(at + 1..at + 1 + contents, Class::Literal);
            at += contents + 2;
        } else if let Some(contents) = character(rest) {
            mark(at + 1..at + 1 + contents, Class::Literal);
            at += contents + 2;
        } else {
            at += 1;
        }
    }
    classes
}

pub(super) fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// The length of the (nested) block comment that `rest` begins with.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// The range of the contents of the raw string that `rest` begins with.
fn raw_string(rest: &[u8]) -> Option<std::ops::Range<usize>> {
    let prefix = if rest.starts_with(b"br") || rest.starts_with(b"cr") {
        2
    } else if rest.starts_with(b"r") {
        1
    } else {
        return None;
    };
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + hashes + 1;
    if rest.get(open - 1) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    Some(open..find(&rest[open..], &close).map_or(rest.len(), |length| open + length))
}

/// The length of the contents before the closing `quote`. A backslash escapes the next byte.
fn quoted(contents: &[u8], quote: u8) -> usize {
    let mut at = 0;
    while at < contents.len() && contents[at] != quote {
        at += if contents[at] == b'\\' { 2 } else { 1 };
    }
    at.min(contents.len())
}

/// The length of the contents of the character literal that `rest` begins with; `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let (&quote, contents) = rest.split_first()?;
    if quote != b'\'' {
        return None;
    }
    let first = *contents.first()?;
    if first == b'\\' {
        return Some(quoted(contents, b'\''));
    }
    let length = match first {
        0..0x80 => 1,
        0x80..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    };
    (contents.get(length) == Some(&b'\'')).then_some(length)
}

/// The line of a byte offset, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

/// The offsets at which `word` occurs in `text` as a whole word.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let after = bytes.get(at + word.len()).copied();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The first token of `code` (a word or a single other character) and what follows it. The token is `""` at the end.
pub(super) fn token(code: &str) -> (&str, &str) {
    let code = code.trim_start();
    let word = code.bytes().take_while(|&byte| is_word(byte)).count();
    let length = if word > 0 { word } else { code.chars().next().map_or(0, char::len_utf8) };
    code.split_at(length)
}

/// The length of the bracketed text that `code` begins with, including both brackets; all of `code` if none closes.
pub(super) fn bracketed(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Splits at every separator outside of brackets.
pub(super) fn parts(code: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ if c == separator && depth == 0 => {
                parts.push(&code[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&code[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("a.rs", text).code
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(Source::new("a.rs", "a // b\nc").comments, "  // b\n ");
    }

    #[test]
    fn contents_of_literals_are_not_code() {
        assert_eq!(code(r#"f("a \" // b", 'x', b'\'', '"', 'é')"#), r#"f("         ", ' ', b'  ', ' ', '  ')"#);
        assert_eq!(code("f(r#\"a \" // b\"#) + x"), "f(r#\"        \"#) + x");
        assert_eq!(code("\"a\\\nb\" c"), "\"  \n \" c");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        for text in ["fn f<'a, 'b>(x: &'a str) {}", "r#type + var", "for<'a> fn(&'a u8)"] {
            assert_eq!(code(text), text);
        }
    }

    #[test]
    fn unfinished_text_does_not_loop_or_panic() {
        for text in ["\"a", "'", "'\\", "/* a", "r#\"a", "b'", "\"\\", "r##", "é'é"] {
            assert_eq!(code(text).len(), text.len());
        }
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(words("std mystd std_x std::a", "std").collect::<Vec<_>>(), [0, 16]);
        assert_eq!(token("  ab_1::c"), ("ab_1", "::c"));
        assert_eq!(token("::c"), (":", ":c"));
        assert_eq!(token(" "), ("", ""));
        assert_eq!(bracketed("(a[b]{c}) d"), 9);
    }
}
