//! [`Flag`]: a flag's value as configuration, and back for `/flagz`.

use clap::Args;
use clap::builder::Resettable;

use super::given::{Given, Mistakes, Syntax};

/// A flag, or a group of flags that make one value.
pub(super) trait Flag: Sized {
    type Value;

    /// The value, or `None` and a mistake for each invalid flag.
    fn resolve(self, mistakes: &mut Mistakes) -> Option<Self::Value>;

    /// The flags that result in this value.
    fn showing(value: Self::Value) -> Self;
}

/// A flag with a default.
impl<S: Syntax> Flag for Given<S> {
    type Value = S::Value;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<S::Value> {
        mistakes.value(self)
    }

    fn showing(value: S::Value) -> Self {
        Self::from_value(value)
    }
}

/// A flag without a default.
impl<S: Syntax> Flag for Option<Given<S>> {
    type Value = Option<S::Value>;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Self::Value> {
        Some(mistakes.optional(self))
    }

    fn showing(value: Self::Value) -> Self {
        value.map(Given::from_value)
    }
}

/// A flag that may be repeated.
impl<S: Syntax> Flag for Vec<Given<S>> {
    type Value = Vec<S::Value>;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<Self::Value> {
        Some(mistakes.list(self))
    }

    fn showing(value: Self::Value) -> Self {
        value.into_iter().map(Given::from_value).collect()
    }
}

/// A group of flags of which none is given, by the command line or the environment.
pub(super) fn unset<A: Args>() -> A {
    let command = A::augment_args(clap::Command::default()).no_binary_name(true);
    let given = command.mut_args(|arg| arg.env(Resettable::Reset)).get_matches_from([""; 0]);
    A::from_arg_matches(&given).expect("every flag has a default or is optional")
}

/// Defines a group of flags, and which field of its settings each one sets. Every field of the settings needs a flag.
macro_rules! flags {
    ($(#[$group:meta])* $vis:vis struct $name:ident => $settings:ident {
        $($(#[$attribute:meta])* $flag_vis:vis $flag:ident: $type:ty => $field:ident,)+
    }) => {
        $(#[$group])*
        $vis struct $name { $($(#[$attribute])* $flag_vis $flag: $type,)+ }

        impl $crate::cli::flag::Flag for $name {
            type Value = $settings;

            fn resolve(self, mistakes: &mut $crate::cli::given::Mistakes) -> Option<$settings> {
                $(let $field = $crate::cli::flag::Flag::resolve(self.$flag, mistakes);)+
                // Returns early only here, after every mistake has been recorded.
                Some($settings { $($field: $field?,)+ })
            }

            fn showing($settings { $($field,)+ }: $settings) -> Self {
                Self { $($flag: $crate::cli::flag::Flag::showing($field),)+ }
            }
        }
    };
}

pub(super) use flags;
