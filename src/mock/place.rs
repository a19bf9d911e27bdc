//! [`Place`]: what a path means.

use std::borrow::Cow;

/// What a path means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// A directory above the API versions.
    Listing(&'static str),
    /// Such a directory without its final slash.
    WithoutSlash,
    /// Below an API version, whether something is there or not.
    Node(Cow<'a, str>),
    /// Under no API version that there is.
    Nowhere,
}

impl<'a> Place<'a> {
    /// Reads a path outside the trees of before v1.
    pub(super) fn of(path: &'a str) -> Self {
        match path {
            "/" => Self::Listing("0.1/\ncomputeMetadata/\n"),
            "/computeMetadata/" => Self::Listing("v1/\nv1beta1/\n"),
            "/computeMetadata" | "/computeMetadata/v1" => Self::WithoutSlash,
            _ => path.strip_prefix("/computeMetadata/v1/").map_or(Self::Nowhere, |node| Self::Node(node.into())),
        }
    }
}
