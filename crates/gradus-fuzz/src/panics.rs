//! Records the message of the last panic.

use std::panic::{self, PanicHookInfo};
use std::sync::Mutex;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Installs a panic hook that records messages, and still prints them.
pub fn keep() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if let Ok(mut kept) = LAST.lock() {
            *kept = info.to_string();
        }
        print(info);
    }));
}

/// The message of the last panic since this function was last called; empty if there was none.
pub(crate) fn take() -> String {
    LAST.lock().map(|mut kept| std::mem::take(&mut *kept)).unwrap_or_default()
}
