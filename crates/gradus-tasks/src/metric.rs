//! [`Metric`]: a named number that says how good a model is.

/// A number that says how good a model is.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Its key in JSON and TOML, such as `accuracy`.
    pub key: String,
    /// Its name for a reader, such as `Accuracy`.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Whether it is a share, which is shown in percent.
    pub is_share: bool,
}

impl Metric {
    /// A number.
    pub fn number(key: impl Into<String>, name: impl Into<String>, value: f64) -> Metric {
        Metric { key: key.into(), name: name.into(), value, is_share: false }
    }

    /// A share from 0 to 1.
    pub fn share(key: impl Into<String>, name: impl Into<String>, value: f64) -> Metric {
        Metric { key: key.into(), name: name.into(), value, is_share: true }
    }

    /// The value for a reader: `98.50 %`, or a number with four significant digits or more.
    pub fn shown(&self) -> String {
        if self.is_share {
            return format!("{:.2} %", self.value * 100.0);
        }
        match self.value.abs() {
            large if large >= 1e6 => format!("{:.4e}", self.value),
            large if large >= 100.0 => format!("{:.1}", self.value),
            small if small < 1e-3 && small > 0.0 => format!("{:.4e}", self.value),
            small if small < 1.0 && small > 0.0 => {
                let zeros = -(small.log10().floor() as i64);
                format!("{:.*}", (3 + zeros).clamp(4, 6) as usize, self.value)
            }
            _ => format!("{:.4}", self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_the_digits_that_matter() {
        let shown = [0.0, 0.5, 0.00123, -0.0456789, 12.34567, 1234.5678, 1.5e7, 2e-5]
            .map(|v| Metric::number("", "", v).shown());
        assert_eq!(shown, ["0.0000", "0.5000", "0.001230", "-0.04568", "12.3457", "1234.6", "1.5000e7", "2.0000e-5"]);
        assert_eq!(Metric::share("", "", 0.985).shown(), "98.50 %");
    }
}
