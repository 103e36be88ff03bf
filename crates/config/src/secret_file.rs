//! Secrets in files of their own: every `KEY` that may hold a secret has a second key `KEY_file`.
//!
//! Container platforms mount secrets as files. An environment variable is visible to every child process and in crash reports; a
//! command line is visible to every user of the machine.

use std::io::Read;
use std::path::Path;

use crate::setting::Value;

/// The size limit of a secret file, in bytes.
const MAX_SIZE: u64 = 64 * 1024;

/// Returns the key that holds the path of the file with the value of `key`.
pub(crate) fn file_key(key: &str) -> String {
    format!("{key}_file")
}

/// Reads the value from the file. An error names the file and never its content.
pub(crate) fn read(path: &str) -> Result<Value, String> {
    let problem = |what: String| format!("the file {path:?} {what}");
    let file =
        std::fs::File::open(Path::new(path)).map_err(|error| problem(format!("cannot be read: {error}")))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_SIZE + 1).read_to_end(&mut bytes);
    read.map_err(|error| problem(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(problem(format!("is longer than {MAX_SIZE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| problem("is not text (UTF-8)".to_owned()))?;
    // Editors and `echo` end a file with a newline that is not part of the secret.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() { Err(problem("is empty".to_owned())) } else { Ok(Value::Content(text.to_owned())) }
}
