//! Typed ids.
//!
//! An id is a version 7 UUID: ids sort by creation time and need no coordination. The creation time can be read from the id, so
//! an id is never a secret. Tokens and session ids are generated elsewhere.

use std::fmt;
use std::str::FromStr;

pub use uuid::Uuid;

/// Declares an id type over a version 7 UUID, so that the compiler tells kinds of ids apart.
#[macro_export]
macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($crate::id::Uuid);

        impl $name {
            /// Generates a new id.
            pub fn generate() -> Self {
                Self($crate::id::Uuid::now_v7())
            }

            pub const fn from_uuid(uuid: $crate::id::Uuid) -> Self {
                Self(uuid)
            }

            pub const fn as_uuid(&self) -> &$crate::id::Uuid {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::id::InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::id::Uuid::try_parse(text).map(Self).map_err(|_| $crate::id::InvalidId)
            }
        }
    };
}

/// Returns a version 8 UUID over the given bytes, for ids that are derived from content (a digest) instead of the time.
pub fn derived(bytes: [u8; 16]) -> Uuid {
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

typed_id!(
    /// One running process, as the holder of a lease or the writer of a log line.
    ProcessId
);

typed_id!(
    /// One deployment: all processes that share a database.
    DeploymentId
);

/// The text is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id: expected 32 hexadecimal digits in five groups")]
pub struct InvalidId;

/// Identifies one request in logs, responses and calls to other services. The caller's own id is used if it is valid.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    pub const MAX_LENGTH: usize = 64;

    pub fn generate() -> Self {
        Self(Uuid::now_v7().simple().to_string())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Accepts only text that is safe in a log line and in a header.
impl FromStr for RequestId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > Self::MAX_LENGTH || !text.chars().all(is_allowed) {
            return Err(InvalidId);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_creation_and_round_trip_as_text() {
        let ids: Vec<ProcessId> = (0..100).map(|_| ProcessId::generate()).collect();
        assert!(ids.is_sorted());
        assert_eq!(ids[0].to_string().parse(), Ok(ids[0]));
        assert_eq!("nonsense".parse::<ProcessId>(), Err(InvalidId));
    }

    #[test]
    fn request_id_cannot_inject_into_logs_or_headers() {
        assert!("0198-ab_C.d".parse::<RequestId>().is_ok());
        for bad in ["", "a b", "a\nlevel=error", "ä", &"x".repeat(65)] {
            assert_eq!(bad.parse::<RequestId>(), Err(InvalidId), "{bad:?}");
        }
    }
}
