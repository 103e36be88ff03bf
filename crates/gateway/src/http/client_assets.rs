//! The JavaScript client, served as the modules that its package consists of. Our own pages load it from here.

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base::Code;
use http_server::Problem;

use super::Segment;

/// Lists files of `clients/js/src` with their contents.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../clients/js/src/", $name)))),*]
    };
}

/// The modules for browsers.
const FILES: [(&str, &str); 15] = files![
    "auth.js",
    "calls.js",
    "client.js",
    "drop-stream.js",
    "emitter.js",
    "errors.js",
    "index.js",
    "live-stream.js",
    "live.js",
    "queue.js",
    "retry.js",
    "sse.js",
    "storage.js",
    "time.js",
    "transport.js",
];

pub(super) async fn file(Segment(name): Segment) -> Result<Response, Problem> {
    let found = FILES.iter().find(|(file, _)| *file == name);
    let (_, text) = found.ok_or_else(|| Problem::new(Code::NotFound))?;
    let headers = [(CONTENT_TYPE, "text/javascript; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, *text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_for_browsers_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/js/src");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut modules: Vec<String> = entries
            .map(|name| name.into_string().unwrap())
            // The file storage is for Node.
            .filter(|name| name.ends_with(".js") && name != "file-storage.js")
            .collect();
        modules.sort();
        let served: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(served, modules);
    }
}
