//! `labels!`: defines metric label values as an enum, so that no other value is possible.

pub trait Label: Copy + 'static {
    /// All values, in the order of the enum.
    const VALUES: &'static [Self];

    /// The value in metrics.
    fn label(self) -> &'static str;

    /// Index in [`Label::VALUES`].
    fn index(self) -> usize;
}

/// Defines an enum whose variants are the values of a label.
#[macro_export]
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $label:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// All values, in the order of the enum.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];
        }

        impl $crate::labels::Label for $name {
            const VALUES: &'static [Self] = &Self::ALL;

            fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
