//! What makes two requests the same, as a hash that outlives this version of the program.
//!
//! Form 1: SHA-256 over the name of the form, then each value as a tag, its length where that varies, and its bytes. Whole numbers are
//! big-endian. A change of any of this, or of what a kind of request writes, would take a retry from before an upgrade for another
//! request: it needs the next form, and [`Earlier::or_before`](crate::Earlier::or_before) for rows of the one before.

use base::id::Uuid;
use serde_json::Value;
use sha2::{Digest, Sha256};

const FORM: &str = "playhouse fingerprint 1";

/// The fingerprint of a request, value by value.
#[derive(Clone, Debug)]
#[must_use]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Begins the fingerprint of a kind of request, such as `notification.send`.
    pub fn of(kind: &str) -> Self {
        Self(Sha256::new()).text(FORM).text(kind)
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

    /// Stands for a value that is not there.
    pub fn nothing(self) -> Self {
        self.raw(b"n")
    }

    /// A value, or that it is not there.
    pub fn option<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self.nothing(),
        }
    }

    /// How many values there are, and the values.
    pub fn list<T>(
        self,
        values: impl ExactSizeIterator<Item = T>,
        write: impl FnMut(Self, T) -> Self,
    ) -> Self {
        let list = self.sized(b'l', values.len());
        values.fold(list, write)
    }

    /// JSON, whatever the order of its fields.
    pub fn json(self, value: &Value) -> Self {
        match value {
            Value::Null => self.nothing(),
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

    fn hex(fingerprint: Fingerprint) -> String {
        fingerprint.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Computed once by another program from the description above. They never change.
    #[test]
    fn form_1_is_what_it_always_was() {
        assert_eq!(
            hex(Fingerprint::of("test")),
            "ba01980fc8340feebd54f56deb64564029a72052b90278415f586876eb358e8d"
        );
        let all = Fingerprint::of("test")
            .text("a\u{e9}")
            .integer(-2)
            .id(&Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10))
            .nothing()
            .option(Some(7), Fingerprint::integer)
            .list(["x", "y"].into_iter(), Fingerprint::text)
            .json(&json!({ "b": [true, null, 1.5, 18_446_744_073_709_551_615_u64], "a": { "z": "s" } }));
        assert_eq!(hex(all), "455b3f7bfe7a70b5fa439e7b4a892a0496def4403f024a547eff4be7fe22fa98");
    }

    #[test]
    fn values_cannot_be_taken_for_others() {
        let of = |write: fn(Fingerprint) -> Fingerprint| hex(write(Fingerprint::of("test")));
        let all = [
            of(|f| f),
            of(|f| f.text("ab").text("c")),
            of(|f| f.text("a").text("bc")),
            of(|f| f.text("")),
            of(Fingerprint::nothing),
            of(|f| f.integer(0)),
            of(|f| f.list(["a"].into_iter(), Fingerprint::text)),
            of(|f| f.list([].into_iter(), Fingerprint::text).text("a")),
            of(|f| f.json(&json!({}))),
            of(|f| f.json(&json!([]))),
            of(|f| f.json(&json!(1.0))),
            of(|f| f.json(&json!(1))),
            of(|f| f.json(&json!("1"))),
        ];
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_ne!(hex(Fingerprint::of("a").text("b")), hex(Fingerprint::of("ab")));
        let (one, other) = (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#);
        let read = |text| Fingerprint::of("test").json(&serde_json::from_str(text).unwrap());
        assert_eq!(hex(read(one)), hex(read(other)));
    }
}
