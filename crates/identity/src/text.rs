//! What texts are made of, and `texts!`: how types show the text that they were parsed from.

/// Whether a text is not empty, and has only lowercase letters, digits and these marks.
pub(crate) fn is_made_of(text: &str, marks: &[u8]) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || marks.contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// For types that hold nothing but their text.
macro_rules! texts {
    ($($name:ident),+) => {
        $(impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        })+
    };
}

pub(crate) use texts;
