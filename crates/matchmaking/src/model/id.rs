//! Ids that are only created here, in the form of ticket ids.

/// Defines the type of such an id.
macro_rules! generated_id {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Generates an id for what is created at this moment.
            pub fn generate(created: $crate::model::Moment) -> Self {
                Self($crate::model::generate_id(created).into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

pub(super) use generated_id;

/// Returns whether an id could have been generated here.
pub(super) fn is_generated(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'v').contains(&byte);
    text.len() == 20 && text.bytes().all(is_digit)
}
