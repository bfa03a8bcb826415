//! Command-line arguments and exit codes.

use std::process::ExitCode;

/// The arguments of this program.
#[derive(Debug)]
pub struct Words(std::iter::Skip<std::env::Args>);

impl Words {
    /// All arguments, without the program's name.
    pub fn all() -> Words {
        Words(std::env::args().skip(1))
    }

    /// The next option, if there is one.
    pub fn option(&mut self) -> Option<String> {
        self.0.next()
    }

    /// The value of the current option.
    pub fn text(&mut self) -> Result<String, String> {
        self.0.next().ok_or("the last option needs a value".into())
    }

    /// The value of the current option, as a number.
    pub fn number(&mut self) -> Result<u64, String> {
        let text = self.text()?;
        text.parse().map_err(|_| format!("`{text}` is no number"))
    }
}

/// The exit code of a program. Prints the error, if there is one.
pub fn exit_code(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
