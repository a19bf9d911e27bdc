//! `texts!`: how types show the text that they were parsed from.

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
