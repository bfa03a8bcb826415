//! A [`Summary`] as a table.

use std::fmt;

use crate::summary::layers::Summary;

/// A number with its thousands apart: `1,234,567`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit that leaves a number above 1.
pub(super) fn size(bytes: usize) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value >= 1024.0 {
            (value, unit) = (value / 1024.0, next);
        }
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.2} {unit}") }
}

impl fmt::Display for Summary {
    /// One line for each module: name and type, output shape, parameters, and multiply-adds. A module that ran before
    /// is marked, and its parameters are not repeated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![["layer".to_owned(), "output".to_owned(), "parameters".to_owned(), "mult-adds".to_owned()]];
        for layer in &self.layers {
            let name = layer.path.rsplit('.').next().unwrap_or_default();
            let colon = if name.is_empty() { "" } else { ": " };
            let count = |n: u64| if n == 0 { "-".to_owned() } else { thousands(n) };
            rows.push([
                format!("{:1$}{name}{colon}{2}", "", 2 * layer.depth, layer.kind),
                layer.shape_text(),
                if layer.repeated { "(again)".to_owned() } else { count(layer.parameters as u64) },
                count(layer.multiply_adds),
            ]);
        }
        let mut widths = [0; 4];
        for row in &rows {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = text.chars().count().max(*width);
            }
        }
        let line = "-".repeat(widths.iter().sum::<usize>() + 6);
        for (i, [layer, output, parameters, work]) in rows.iter().enumerate() {
            let [a, b, c, d] = widths;
            writeln!(f, "{layer:<a$}  {output:<b$}  {parameters:>c$}  {work:>d$}")?;
            if i == 0 {
                writeln!(f, "{line}")?;
            }
        }
        writeln!(f, "{line}")?;
        let frozen = self.parameters - self.trainable_parameters;
        writeln!(f, "parameters       {} ({} frozen)", thousands(self.parameters as u64), thousands(frozen as u64))?;
        writeln!(f, "mult-adds        {}", thousands(self.multiply_adds))?;
        writeln!(f, "input bytes      {}", size(self.input_bytes))?;
        writeln!(f, "parameter bytes  {}", size(self.parameter_bytes))?;
        writeln!(f, "buffer bytes     {}", size(self.buffer_bytes))?;
        write!(f, "output bytes     {}", size(self.output_bytes))
    }
}
