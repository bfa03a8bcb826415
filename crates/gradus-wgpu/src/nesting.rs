//! Limits on users' modules that neither naga nor drivers check: how long a module is, and how deeply it is nested.
//!
//! naga limits the depth of brackets and braces, but it also recurses for each term of a sum, each branch of a chain of
//! `else if`, and each declaration that another one uses. WGSL is therefore checked before naga sees it, and compiled
//! on a thread with enough stack for the deepest module that passes.

use gradus_backend::{Error, ErrorKind, Result};

use crate::program::OP;

/// The limit on the depth of an expression, on the branches of an `if`, and on the declarations of a module.
const MOST: usize = 1000;
/// The largest size of a module in bytes.
const MOST_BYTES: usize = 1 << 20;
/// The size of the stack in bytes. It is enough for [`MOST`] levels of recursion in naga, even without optimisation.
const STACK: usize = 64 << 20;

/// Runs `compile` on a thread with enough stack for any module that [`check`] accepts.
pub(crate) fn with_stack<R: Send>(compile: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    let thread = std::thread::Builder::new().name("gradus-wgpu compiler".to_owned()).stack_size(STACK);
    std::thread::scope(|scope| {
        let failed = |m: String| Error::new(ErrorKind::Backend, OP, m);
        let running =
            thread.spawn_scoped(scope, compile).map_err(|e| failed(format!("no thread to compile on: {e}")))?;
        running.join().unwrap_or_else(|panic| {
            let why = crate::queue::said(&*panic).unwrap_or("it does not say why");
            Err(failed(format!("the compiler panics: {why}")))
        })
    })
}

/// Fails if a module is too long.
pub(crate) fn check_length(bytes: &[u8]) -> Result<()> {
    if bytes.len() <= MOST_BYTES {
        return Ok(());
    }
    let m = format!("the module has {} bytes; it may have at most {MOST_BYTES}", bytes.len());
    Err(Error::argument(OP, m))
}

/// Fails if naga could run out of stack on a WGSL module.
pub(crate) fn check(text: &str) -> Result<()> {
    check_length(text.as_bytes())?;
    let mut tokens = Tokens(text.as_bytes());
    // The levels of brackets that are open in the current statement.
    let mut levels = vec![Level::default()];
    // The number of branches of the last `if` at each depth of braces.
    let mut branches = vec![0];
    let (mut declarations, mut after_else) = (0, false);
    while let Some(token) = tokens.next() {
        let (level, chain) = (levels.pop().unwrap_or_default(), branches.pop().unwrap_or_default());
        let outermost = branches.is_empty();
        branches.push(match token {
            b"else" => chain + 1,
            b"if" if !after_else => 0,
            _ => chain,
        });
        match token {
            b"(" | b"[" => levels.extend([level, Level::default()]),
            b")" | b"]" => {
                let outer = levels.pop().unwrap_or_default();
                // Indexing counts as one step.
                let steps = outer.steps + usize::from(token == b"]");
                levels.push(Level { inner: outer.inner.max(level.depth()), steps, ..outer });
            }
            b"," => levels.push(Level { before: level.depth(), ..Level::default() }),
            b";" | b"{" | b"}" => levels = vec![Level::default()],
            [c, ..] if is_of_word(*c) => levels.push(level),
            _ => levels.push(Level { steps: level.steps + 1, ..level }),
        }
        match token {
            b"{" => branches.push(0),
            b"}" => drop(branches.pop()),
            b"fn" | b"const" | b"var" | b"override" | b"alias" | b"struct" if outermost => declarations += 1,
            _ => {}
        }
        after_else = token == b"else";
        let what = if levels.last().is_some_and(|l| l.depth() > MOST) {
            "an expression with more operators inside each other"
        } else if branches.last().is_some_and(|&b| b > MOST) {
            "an `if` with more branches"
        } else if declarations > MOST {
            "more declarations before it"
        } else {
            continue;
        };
        let line = 1 + text.as_bytes()[..text.len() - tokens.0.len()].iter().filter(|&&c| c == b'\n').count();
        let m = format!("the WGSL module is refused: line {line} has {what} than {MOST}");
        return Err(Error::argument(OP, m).help("write a loop, or give names to parts of it with `let`"));
    }
    Ok(())
}

/// The expressions inside one pair of brackets.
#[derive(Default)]
struct Level {
    /// The depth of the deepest expression before the last comma.
    before: usize,
    /// The depth of the deepest brackets after the last comma.
    inner: usize,
    /// The number of operators, member accesses and index expressions after the last comma. Each may have everything
    /// before it as its operand.
    steps: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.before.max(self.inner + self.steps)
    }
}

/// The tokens of a WGSL text: words, and other characters one by one. Spaces and comments are skipped. A number with a
/// decimal point is one word.
struct Tokens<'a>(&'a [u8]);

fn is_of_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || !c.is_ascii()
}

impl<'a> Tokens<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (token, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        token
    }

    /// Skips a block comment and any comments nested in it.
    fn skip_comment(&mut self) {
        let mut open = 0;
        loop {
            match self.0 {
                [b'/', b'*', ..] => open += 1,
                [b'*', b'/', ..] => open -= 1,
                [] => return,
                _ => {
                    self.take(1);
                    continue;
                }
            }
            self.take(2);
            if open == 0 {
                return;
            }
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            match *self.0.first()? {
                b'/' if self.0.starts_with(b"//") => {
                    self.take(self.0.iter().position(|&c| c == b'\n').unwrap_or(usize::MAX));
                }
                b'/' if self.0.starts_with(b"/*") => self.skip_comment(),
                c if c.is_ascii_whitespace() => drop(self.take(1)),
                c if is_of_word(c) => {
                    let inside = |x: u8| is_of_word(x) || (c.is_ascii_digit() && x == b'.');
                    return Some(self.take(self.0.iter().position(|&x| !inside(x)).unwrap_or(usize::MAX)));
                }
                _ => return Some(self.take(1)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Option<String> {
        check(text).err().map(|e| e.message().to_owned())
    }

    #[test]
    fn depth_is_counted_and_length_is_not() {
        let sum = |n: usize| format!("fn main() {{\n  let y = x{};\n}}", " + x.y[1]".repeat(n));
        assert_eq!(refused(&sum(300)), None);
        let says =
            "the WGSL module is refused: line 2 has an expression with more operators inside each other than 1000";
        assert_eq!(refused(&sum(400)).as_deref(), Some(says));
        // Each sum in brackets is the first term of the next one.
        let nested = |n: usize| format!("let y = {}x{};", "(".repeat(9), format!("{})", "+x".repeat(n)).repeat(9));
        assert_eq!((refused(&nested(100)), refused(&nested(120)).is_some()), (None, true));
        let table = format!("const t = array<f32, 9000>({});", "-1.5, f(x, -2.0) * 2.0, ".repeat(3000));
        assert_eq!(refused(&table), None, "a table");
        assert_eq!(refused(&"let y = x + 1.0; // - - - /*\n".repeat(5000)), None, "lines");
        assert_eq!(refused(&format!("let y = /* {} /* */ */ x", "+\n".repeat(5000))), None, "a comment");
        let chain = |n: usize| format!("fn main() {{ if a {{ x }} {} }}", "else if b { y = 1; }".repeat(n));
        assert_eq!((refused(&chain(1000)), refused(&chain(1001)).is_some()), (None, true));
        assert_eq!(refused(&"if a { x; } else { y; }".repeat(3000)), None);
        let functions = |n: usize| "fn f() { var x = 1; }".repeat(n);
        assert_eq!((refused(&functions(1000)), refused(&functions(1001)).is_some()), (None, true));
        assert_eq!(refused(") ] } } ) ; , else else"), None);
    }
}
