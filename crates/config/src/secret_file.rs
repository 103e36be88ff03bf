//! Secrets that stand in files of their own: `KEY_file` beside every `KEY` that may hold a secret.
//!
//! Container platforms mount secrets as files. An environment variable is seen by every child process and in crash reports; a command
//! line is seen by every user of the machine.

use std::io::Read;
use std::path::Path;

use crate::setting::Value;

/// No secret is longer.
const MAX_SIZE: u64 = 64 * 1024;

/// The key that names the file with the value of `key`.
pub(crate) fn file_key(key: &str) -> String {
    format!("{key}_file")
}

/// Reads the value. A failure names the file and never its content.
pub(crate) fn read(path: &str) -> Result<Value, String> {
    let cannot = |what: String| format!("the file {path:?} {what}");
    let file =
        std::fs::File::open(Path::new(path)).map_err(|error| cannot(format!("cannot be read: {error}")))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_SIZE + 1).read_to_end(&mut bytes);
    read.map_err(|error| cannot(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(cannot(format!("is longer than {MAX_SIZE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| cannot("is not text (UTF-8)".to_owned()))?;
    // Editors and `echo` end a file with a newline, which belongs to no secret.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() { Err(cannot("is empty".to_owned())) } else { Ok(Value::Content(text.to_owned())) }
}
