//! [`Repeated`]: flags of the proxy that may also be given after a subcommand.

use super::given::{Given, Syntax};

/// A flag, or a group of flags, before and after a subcommand.
pub(super) trait Repeated {
    /// This flag, which was given after the subcommand, if it was typed; otherwise the one given before.
    fn over(self, before: Self) -> Self;
}

impl<S: Syntax> Repeated for Given<S> {
    fn over(self, before: Self) -> Self {
        if self.is_typed() { self } else { before }
    }
}

impl<S: Syntax> Repeated for Option<Given<S>> {
    fn over(self, before: Self) -> Self {
        self.filter(Given::is_typed).or(before)
    }
}

impl<S: Syntax> Repeated for Vec<Given<S>> {
    fn over(self, before: Self) -> Self {
        if self.iter().any(Given::is_typed) { self } else { before }
    }
}

impl Repeated for bool {
    fn over(self, before: Self) -> Self {
        self || before
    }
}

/// Defines a group of flags, each of which is [`Repeated`] separately.
macro_rules! repeated {
    ($(#[$group:meta])* $vis:vis struct $name:ident { $($(#[$flag:meta])* $field_vis:vis $field:ident: $type:ty,)+ }) => {
        $(#[$group])*
        $vis struct $name { $($(#[$flag])* $field_vis $field: $type,)+ }

        impl $crate::cli::repeated::Repeated for $name {
            fn over(self, before: Self) -> Self {
                Self { $($field: self.$field.over(before.$field),)+ }
            }
        }
    };
}

pub(super) use repeated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_after_the_subcommand_counts_more_than_one_before_and_the_environment_least() {
        let typed = |text: &str| Given::<String>::from_value(text.to_owned());
        let environment = || Given::<String>::from_environment("environment");
        let shown = |given: Option<Given<String>>| given.map(|given| given.text().to_owned()).unwrap_or_default();
        for (after, before, expected) in [
            (Some(typed("after")), Some(typed("before")), "after"),
            (Some(environment()), Some(typed("before")), "before"),
            (Some(environment()), Some(environment()), "environment"),
            (Some(typed("after")), Some(environment()), "after"),
            (None, Some(typed("before")), "before"),
            (None, None, ""),
        ] {
            assert_eq!(shown(after.over(before)), expected);
        }
        let over = |after: Given<String>, before| after.over(before).text().to_owned();
        assert_eq!(over(typed("after"), typed("before")), "after");
        assert_eq!(over(environment(), typed("before")), "before");
        let list = |given: Vec<Given<String>>| given.iter().map(Given::text).collect::<String>();
        assert_eq!(list(vec![typed("a")].over(vec![typed("b"), typed("c")])), "a");
        assert_eq!(list(vec![environment()].over(vec![typed("b")])), "b");
        assert_eq!([(true, false), (false, true), (false, false)].map(|(a, b)| a.over(b)), [true, true, false]);
    }
}
