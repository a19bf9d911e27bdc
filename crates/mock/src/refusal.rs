//! [`Refusal`]: all error responses, as HTML pages.
//!
//! The server's text is not copied. The contents of its pages are known from gcp-metadata#657, Google's
//! hardening workshop for GKE and the emulator: the status, the path, and the reason.

use http::StatusCode;

use super::answer::{HTML_UTF8, Response};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The path does not exist.
    Missing,
    /// `Metadata-Flavor: Google` is missing.
    Flavor,
    /// `X-Forwarded-For` is present, with any value.
    Forwarded,
    /// A method that the path does not support.
    Method,
    /// An invalid query, with the reason.
    Query(&'static str),
    /// An invalid head, with the reason. The connection is closed afterwards.
    Malformed(&'static str),
    /// A head larger than [`MAX_HEAD_BYTES`](super::head::MAX_HEAD_BYTES).
    HeadTooLarge,
    /// A body larger than [`MAX_BODY_BYTES`](super::head::MAX_BODY_BYTES).
    BodyTooLarge,
    /// Guests may not write: `enable-guest-attributes` is off.
    GuestAttributesDisabled,
    /// The machine has no workload certificates.
    NotConfigured,
}

impl Refusal {
    /// The page for a path as sent by the client.
    pub(super) fn answer(self, path: &str) -> Response {
        let (status, text) = self.parts();
        let (code, reason) = (status.as_u16(), status.canonical_reason().unwrap_or("Unknown"));
        let path = escaped(path);
        let page = format!(
            "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Error {code} ({reason})</title>\n\
             <h1>{code} {reason}</h1>\n<p>The metadata server cannot answer for <code>{path}</code>.\n<p>{text}\n</html>\n"
        );
        Response::new(status, HTML_UTF8, page)
    }

    fn parts(self) -> (StatusCode, &'static str) {
        match self {
            Self::Query(text) | Self::Malformed(text) => (StatusCode::BAD_REQUEST, text),
            Self::Flavor => (
                StatusCode::FORBIDDEN,
                "Your client has no permission for it: the header Metadata-Flavor:Google is missing.",
            ),
            Self::Forwarded => (
                StatusCode::FORBIDDEN,
                "Your client has no permission for it: the header X-Forwarded-For is not allowed.",
            ),
            Self::GuestAttributesDisabled => (StatusCode::FORBIDDEN, "Access to guest attributes is disabled."),
            Self::Missing => (StatusCode::NOT_FOUND, "There is no such entry."),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "The method is not allowed."),
            Self::NotConfigured => (StatusCode::PRECONDITION_FAILED, "Workload certificates are not configured."),
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "The body is too long."),
            Self::HeadTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "The request line and headers are too long.")
            }
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_escaped_in_the_page() {
        let answer = Refusal::Missing.answer("/<script>");
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains("/&lt;script&gt;") && !answer.body.contains("<script>"));
    }
}
