//! [`Kind`]: how a value is stored and how it shows.

/// How a value is stored and how it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Plain text, a string in JSON.
    Text,
    /// Digits, a number in JSON.
    Number,
    /// Lines, each an item; as text every item ends in a newline.
    Lines,
    /// Lines that are shown as a JSON array unless text is asked for; only `instance/tags` is so (the emulator).
    JsonLines,
    /// A document that is JSON already.
    Json,
    /// Made for each request, listed, never part of a recursive answer (the emulator).
    Token,
    /// As [`Kind::Token`].
    Identity,
    /// No leaf: keeps a directory alive that may be empty. Its path ends in `/`.
    Directory,
}
