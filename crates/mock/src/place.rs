//! [`Place`]: the meaning of a path.

use std::borrow::Cow;

/// The meaning of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// A directory above the API versions.
    Listing(&'static str),
    /// Such a directory without its trailing slash.
    WithoutSlash,
    /// Below an API version. It may not exist.
    Node(Cow<'a, str>),
    /// Not under any API version.
    Nowhere,
}

impl<'a> Place<'a> {
    /// Resolves a path outside the legacy trees.
    pub(super) fn from_path(path: &'a str) -> Self {
        match path {
            "/" => Self::Listing("0.1/\ncomputeMetadata/\n"),
            "/computeMetadata/" => Self::Listing("v1/\nv1beta1/\n"),
            "/computeMetadata" | "/computeMetadata/v1" => Self::WithoutSlash,
            _ => path.strip_prefix("/computeMetadata/v1/").map_or(Self::Nowhere, |node| Self::Node(node.into())),
        }
    }
}
