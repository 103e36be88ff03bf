//! Statements that are sent in one round trip, with their values as literals.

use std::fmt::Write;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;

use crate::Dialect;

/// A value in a statement. Safe from SQL injection: text and bytes are written as hexadecimal literals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    Integer(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// The current time by the store's clock.
    Now,
    /// The current time by the store's clock plus this duration.
    After(Duration),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Uuid> for Value<'a> {
    fn from(id: &'a Uuid) -> Self {
        Self::Bytes(id.as_bytes())
    }
}

impl From<Timestamp> for Value<'_> {
    fn from(time: Timestamp) -> Self {
        Self::Integer(time.as_millis())
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The text of statements that are to be sent together.
#[derive(Debug, Default)]
pub(crate) struct Script(String);

impl Script {
    /// Adds an insert statement: its head up to `VALUES`, the rows, and its tail. Adds nothing if there are no rows.
    pub(crate) fn insert<'a, const N: usize>(
        &mut self,
        dialect: Dialect,
        head: &str,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
        tail: &str,
    ) {
        let mut separator = " VALUES ";
        let start = self.0.len();
        self.0.push_str(head);
        let head = self.0.len();
        for row in rows {
            self.0.push_str(separator);
            separator = ", ";
            let mut opening = '(';
            for value in row {
                self.0.push(opening);
                opening = ',';
                self.write(dialect, value);
            }
            self.0.push(')');
        }
        if self.0.len() == head {
            // There were no rows.
            self.0.truncate(start);
        } else {
            self.0.push_str(tail);
            self.0.push_str(";\n");
        }
    }

    /// Adds a delete or update statement: its head up to `IN`, and a list of values. Adds nothing if there are no values.
    pub(crate) fn change_in_list<'a>(
        &mut self,
        dialect: Dialect,
        head: &str,
        values: impl IntoIterator<Item = Value<'a>>,
    ) {
        let mut separator = " IN (";
        for value in values {
            if separator.starts_with(' ') {
                self.0.push_str(head);
            }
            self.0.push_str(separator);
            separator = ",";
            self.write(dialect, value);
        }
        if separator == "," {
            self.0.push_str(");\n");
        }
    }

    fn write(&mut self, dialect: Dialect, value: Value<'_>) {
        let Self(text) = self;
        match value {
            Value::Null => text.push_str("NULL"),
            // Writing to a String cannot fail.
            Value::Integer(number) => drop(write!(text, "{number}")),
            Value::Now => text.push_str(dialect.now()),
            Value::After(wait) => drop(write!(text, "{} + {}", dialect.now(), wait.as_millis())),
            Value::Bytes(bytes) => hexadecimal(text, bytes),
            Value::Text(value) => match dialect {
                Dialect::MySql => hexadecimal(text, value.as_bytes()),
                Dialect::Sqlite => {
                    text.push_str("CAST(");
                    hexadecimal(text, value.as_bytes());
                    text.push_str(" AS TEXT)");
                }
            },
        }
    }

    /// Returns the text of the statements, followed by `last`.
    pub(crate) fn ending_with(self, last: &str) -> String {
        self.0 + last
    }
}

fn hexadecimal(text: &mut String, bytes: &[u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    text.reserve(bytes.len() * 2 + 3);
    text.push_str("X'");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let mut script = Script::default();
        let rows = [
            [
                Value::Integer(-7),
                Value::Null,
                Value::Text("a'); DROP TABLE t; --\0ä"),
                Value::Bytes(&[0, 255]),
            ],
            [Value::Integer(i64::MIN), Value::Text(""), Value::Now, Value::Bytes(&[])],
        ];
        script.insert(Dialect::MySql, "INSERT INTO t (a, b, c, d)", rows, "");
        script.insert::<1>(Dialect::MySql, "INSERT INTO nothing (a)", [], " ON DUPLICATE KEY UPDATE a = 1");
        assert_eq!(
            script.ending_with("COMMIT"),
            "INSERT INTO t (a, b, c, d) VALUES (-7,NULL,X'6127293b2044524f50205441424c4520743b202d2d00c3a4',X'00ff'), \
             (-9223372036854775808,X'',CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED),X'');\nCOMMIT"
        );
        let mut script = Script::default();
        script.insert(Dialect::Sqlite, "INSERT INTO t (a)", [[Value::Text("a'b")]], "");
        assert_eq!(
            script.ending_with("COMMIT"),
            "INSERT INTO t (a) VALUES (CAST(X'612762' AS TEXT));\nCOMMIT"
        );
    }

    #[test]
    fn rows_are_deleted_and_updated_by_list() {
        let mut script = Script::default();
        script.change_in_list(Dialect::MySql, "DELETE FROM t WHERE a", []);
        script.change_in_list(
            Dialect::MySql,
            "DELETE FROM t WHERE a",
            [Value::Bytes(&[1, 255]), Value::Integer(7)],
        );
        script.change_in_list(Dialect::Sqlite, "UPDATE t SET b = 1 WHERE a", [Value::Integer(9)]);
        assert_eq!(
            script.ending_with("COMMIT"),
            "DELETE FROM t WHERE a IN (X'01ff',7);\nUPDATE t SET b = 1 WHERE a IN (9);\nCOMMIT"
        );
    }

    #[test]
    fn future_times_use_the_stores_clock() {
        for dialect in [Dialect::MySql, Dialect::Sqlite] {
            let mut script = Script::default();
            let wait = Value::After(Duration::from_micros(1_500_999));
            script.insert(dialect, "INSERT INTO t (a, b)", [[wait, Value::Null]], "");
            let expected = format!("INSERT INTO t (a, b) VALUES ({} + 1500,NULL);\n", dialect.now());
            assert_eq!(script.ending_with(""), expected);
        }
    }
}
