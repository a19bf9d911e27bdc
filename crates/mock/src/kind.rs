//! [`Kind`]: how a value is stored and formatted.

/// How a value is stored and formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Plain text, a string in JSON.
    Text,
    /// Digits, a number in JSON.
    Number,
    /// One item per line. As text, every item ends in a newline.
    Lines,
    /// One item per line, returned as a JSON array unless text is requested. Only `instance/tags` (the
    /// emulator).
    JsonLines,
    /// A JSON document.
    Json,
    /// Generated for each request. Included in listings, but not in recursive responses (the emulator).
    Token,
    /// Like [`Kind::Token`].
    Identity,
    /// Not a leaf: keeps a directory that may be empty. Its path ends in `/`.
    Directory,
}
