//! `printf` and `assert`.

use super::race::Access;
use super::warp::Warp;
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::Window;

/// The longest text that is read.
const LONGEST: u64 = 1 << 16;

impl Warp {
    /// A text that ends with a zero byte.
    fn text(&mut self, context: &mut Context<'_>, access: Access, at: u64) -> Result<Vec<u8>, Box<Mistake>> {
        let mut text = Vec::new();
        for offset in 0..LONGEST {
            match self.read_element(context, access, Window::Generic, at + offset, 1)? as u8 {
                0 => break,
                byte => text.push(byte),
            }
        }
        Ok(text)
    }

    pub(super) fn print(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        format: u64,
        arguments: u64,
        result: Option<u64>,
    ) -> Result<(), Box<Mistake>> {
        for lane in lanes(active) {
            let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
            let at = self.call_param(context, pc, lane, format, 8)?;
            let format = self.text(context, access, at)?;
            let mut values = self.call_param(context, pc, lane, arguments, 8)?;
            let mut count = 0u32;
            let mut rest = format.as_slice();
            let mut out = Vec::new();
            while let Some(percent) = rest.iter().position(|byte| *byte == b'%') {
                out.extend_from_slice(&rest[..percent]);
                let spec = &rest[percent + 1..];
                let len = spec
                    .iter()
                    .position(|byte| byte.is_ascii_alphabetic() && !b"hlLjzt".contains(byte) || *byte == b'%');
                let Some(len) = len else { break };
                let (flags, kind) = (&spec[..len], spec[len]);
                rest = &spec[len + 1..];
                if kind == b'%' {
                    out.push(b'%');
                    continue;
                }
                let is_long = flags.iter().any(|byte| b"ljzt".contains(byte));
                let size = if is_long || b"fFeEgGaAsp".contains(&kind) { 8 } else { 4 };
                values = values.next_multiple_of(size);
                let bits = self.read_element(context, access, Window::Generic, values, size as u32)?;
                values += size;
                count += 1;
                let piece = match kind {
                    b's' => self.text(context, access, bits)?,
                    _ => formatted(flags, kind, bits, size).into_bytes(),
                };
                padded(&mut out, flags, &piece);
            }
            out.extend_from_slice(rest);
            context.stats.output.push_str(&String::from_utf8_lossy(&out));
            if let Some(result) = result {
                self.call_result(context, pc, lane, result, count)?;
            }
        }
        Ok(())
    }

    pub(super) fn assert_fail(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        message: u64,
        file: u64,
        line: u64,
    ) -> Result<(), Box<Mistake>> {
        let lane = active.trailing_zeros() as usize;
        let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
        let mut texts = [String::new(), String::new()];
        for (text, place) in texts.iter_mut().zip([message, file]) {
            let at = self.call_param(context, pc, lane, place, 8)?;
            *text = String::from_utf8_lossy(&self.text(context, access, at)?).into_owned();
        }
        let line = self.call_param(context, pc, lane, line, 4)?;
        let text = format!("assertion failed: {} ({}:{line})", texts[0], texts[1]);
        context.mistake(FaultKind::Trap, pc, lane as u32, text)
    }
}

/// A number as `printf` writes it.
fn formatted(flags: &[u8], kind: u8, bits: u64, size: u64) -> String {
    let text = String::from_utf8_lossy(flags);
    let precision = text.split_once('.').map(|(_, rest)| rest.trim_end_matches(|c: char| c.is_ascii_alphabetic()));
    let precision = precision.and_then(|digits| digits.parse::<usize>().ok()).unwrap_or(6).min(1000);
    let signed = if size == 4 { i64::from(bits as i32) } else { bits as i64 };
    let plain = match kind {
        b'd' | b'i' => signed.to_string(),
        b'u' => bits.to_string(),
        b'x' => format!("{bits:x}"),
        b'X' => format!("{bits:X}"),
        b'o' => format!("{bits:o}"),
        b'c' => char::from(bits as u8).to_string(),
        b'p' => format!("{bits:#x}"),
        b'e' | b'E' => scientific(f64::from_bits(bits), precision),
        b'g' | b'G' => format!("{}", f64::from_bits(bits)),
        _ => format!("{:.precision$}", f64::from_bits(bits)),
    };
    if flags.contains(&b'+') && !plain.starts_with('-') { format!("+{plain}") } else { plain }
}

fn scientific(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    match text.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => text,
    }
}

/// Fills a piece to its width.
fn padded(out: &mut Vec<u8>, flags: &[u8], piece: &[u8]) {
    let digits = flags.iter().skip_while(|byte| b"-+ #0".contains(byte)).take_while(|byte| byte.is_ascii_digit());
    let width = digits.fold(0usize, |width, digit| (width * 10 + usize::from(digit - b'0')).min(1000));
    let fill = width.saturating_sub(piece.len());
    let zeros = flags.iter().take_while(|byte| b"-+ #0".contains(byte)).any(|byte| *byte == b'0');
    if flags.contains(&b'-') {
        out.extend_from_slice(piece);
        out.resize(out.len() + fill, b' ');
    } else {
        out.resize(out.len() + fill, if zeros { b'0' } else { b' ' });
        out.extend_from_slice(piece);
    }
}
