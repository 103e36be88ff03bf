//! The format of JSON columns: a version beside the fields, so that a program rejects a format that it does not know.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(tag = "version")]
enum Stored<T> {
    #[serde(rename = "1")]
    V1(T),
}

/// Serializes a value for its column.
pub(super) fn write<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Stored::V1(value))
}

/// Parses the text of a column. Fails for a version that this program does not know.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).map(|Stored::V1(value)| value)
}
