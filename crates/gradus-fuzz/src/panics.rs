//! What the last panic said.

use std::panic::{self, PanicHookInfo};
use std::sync::Mutex;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Keeps what a panic says, from now on, beside printing it.
pub fn keep() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if let Ok(mut kept) = LAST.lock() {
            *kept = info.to_string();
        }
        print(info);
    }));
}

/// What was said since the last call of this, or nothing.
pub(crate) fn take() -> String {
    LAST.lock().map(|mut kept| std::mem::take(&mut *kept)).unwrap_or_default()
}
