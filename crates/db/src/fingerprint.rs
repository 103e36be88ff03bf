//! Request fingerprints: a hash that is the same for two requests if and only if they request the same thing.
//!
//! The hash is stored, so it must not change between versions of the program. Format 1 is SHA-256 over the name of the format, then for
//! each value a tag, its length if that varies, and its bytes. Integers are big-endian.
//!
//! After any change to this, or to the values that a kind of request writes, a retry from before the upgrade would count as a different
//! request. Such a change needs a new format, and a fallback for rows in the previous one like
//! [`KeyLookup::or_legacy`](crate::KeyLookup::or_legacy).

use base::id::Uuid;
use serde_json::Value;
use sha2::{Digest, Sha256};

const FORMAT: &str = "playhouse fingerprint 1";

/// Builds the fingerprint of a request, value by value.
#[derive(Clone, Debug)]
#[must_use]
pub struct RequestFingerprint(Sha256);

impl RequestFingerprint {
    /// Starts the fingerprint of a request of this kind, such as `notification.send`.
    pub fn new(kind: &str) -> Self {
        Self(Sha256::new()).text(FORMAT).text(kind)
    }

    pub fn text(self, text: &str) -> Self {
        self.sized(b't', text.len()).raw(text.as_bytes())
    }

    pub fn integer(self, number: i64) -> Self {
        self.raw(b"i").raw(&number.to_be_bytes())
    }

    pub fn id(self, id: &Uuid) -> Self {
        self.raw(b"u").raw(id.as_bytes())
    }

    /// Adds an absent value.
    pub fn absent(self) -> Self {
        self.raw(b"n")
    }

    /// Adds a value that may be absent.
    pub fn option<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self.absent(),
        }
    }

    /// Adds the number of values, then the values.
    pub fn list<T>(
        self,
        values: impl ExactSizeIterator<Item = T>,
        write: impl FnMut(Self, T) -> Self,
    ) -> Self {
        let list = self.sized(b'l', values.len());
        values.fold(list, write)
    }

    /// Adds a JSON value. The order of an object's fields does not matter.
    pub fn json(self, value: &Value) -> Self {
        match value {
            Value::Null => self.absent(),
            Value::Bool(is_true) => self.raw(b"b").raw(&[u8::from(*is_true)]),
            Value::String(text) => self.text(text),
            Value::Array(values) => self.list(values.iter(), Self::json),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => self.integer(number),
                (None, Some(number)) => self.raw(b"p").raw(&number.to_be_bytes()),
                (None, None) => {
                    self.raw(b"f").raw(&number.as_f64().unwrap_or_default().to_bits().to_be_bytes())
                }
            },
            Value::Object(fields) => {
                let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                fields.sort_unstable_by_key(|(name, _)| *name);
                let object = self.sized(b'o', fields.len());
                fields.into_iter().fold(object, |object, (name, value)| object.text(name).json(value))
            }
        }
    }

    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    fn sized(self, tag: u8, length: usize) -> Self {
        self.raw(&[tag]).raw(&(length as u64).to_be_bytes())
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(fingerprint: RequestFingerprint) -> String {
        fingerprint.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The expected hashes were computed by another program from the description above. They never change.
    #[test]
    fn format_1_is_stable() {
        assert_eq!(
            hex(RequestFingerprint::new("test")),
            "ba01980fc8340feebd54f56deb64564029a72052b90278415f586876eb358e8d"
        );
        let all = RequestFingerprint::new("test")
            .text("a\u{e9}")
            .integer(-2)
            .id(&Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10))
            .absent()
            .option(Some(7), RequestFingerprint::integer)
            .list(["x", "y"].into_iter(), RequestFingerprint::text)
            .json(&json!({ "b": [true, null, 1.5, 18_446_744_073_709_551_615_u64], "a": { "z": "s" } }));
        assert_eq!(hex(all), "455b3f7bfe7a70b5fa439e7b4a892a0496def4403f024a547eff4be7fe22fa98");
    }

    #[test]
    fn different_values_have_different_fingerprints() {
        let of =
            |write: fn(RequestFingerprint) -> RequestFingerprint| hex(write(RequestFingerprint::new("test")));
        let all = [
            of(|f| f),
            of(|f| f.text("ab").text("c")),
            of(|f| f.text("a").text("bc")),
            of(|f| f.text("")),
            of(RequestFingerprint::absent),
            of(|f| f.integer(0)),
            of(|f| f.list(["a"].into_iter(), RequestFingerprint::text)),
            of(|f| f.list([].into_iter(), RequestFingerprint::text).text("a")),
            of(|f| f.json(&json!({}))),
            of(|f| f.json(&json!([]))),
            of(|f| f.json(&json!(1.0))),
            of(|f| f.json(&json!(1))),
            of(|f| f.json(&json!("1"))),
        ];
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_ne!(hex(RequestFingerprint::new("a").text("b")), hex(RequestFingerprint::new("ab")));
        let (one, other) = (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#);
        let read = |text| RequestFingerprint::new("test").json(&serde_json::from_str(text).unwrap());
        assert_eq!(hex(read(one)), hex(read(other)));
    }
}
