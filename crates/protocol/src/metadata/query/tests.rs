use percent_encoding::percent_decode_str;
use proptest::prelude::*;

use super::*;

fn upstream(text: &str) -> Result<String, QueryError> {
    Query::parse(Some(text)).map(|query| query.to_string())
}

#[test]
fn a_missing_query_is_empty() {
    assert_eq!(Query::parse(None), Ok(Query::default()));
    assert_eq!(upstream("").as_deref(), Ok(""));
}

#[test]
fn parameters_are_encoded_in_a_fixed_order() {
    let sent = "transport=mtls&scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform&alt=json";
    let written = "?alt=json&scopes=https://www.googleapis.com/auth/cloud-platform&transport=mtls";
    assert_eq!(upstream(sent).as_deref(), Ok(written));
}

/// Some servers would misread an unescaped `?`, `#`, `&`, `;`, `=`, `%` or `+`.
#[test]
fn separators_in_values_are_escaped() {
    assert_eq!(
        upstream("audience=%3F%23%26%3B%3D%25%2B+%5C%22").as_deref(),
        Ok("?audience=%3F%23%26%3B%3D%25%2B%20%5C%22")
    );
    assert_eq!(upstream("scopes=https%3A%2F%2Fa%2Fb,a@b").as_deref(), Ok("?scopes=https://a/b,a@b"));
}

#[test]
fn every_spelling_of_recursive_counts() {
    for text in [
        "recursive",
        "recursive=",
        "recursive=True",
        "recursive=1",
        "recursive=maybe",
        "%72ecursive=yes",
        "alt=text&recursive=on",
    ] {
        assert!(Query::parse(Some(text)).is_ok_and(|query| query.is_recursive()), "{text}");
    }
    for text in ["recursive=false", "recursive=FALSE", "recursive=0", "alt=text"] {
        assert_eq!(Query::parse(Some(text)).map(|query| query.is_recursive()), Ok(false), "{text}");
    }
}

#[test]
fn a_key_that_only_resembles_a_known_one_is_unknown() {
    for (text, key) in [
        ("recursive%3Dtrue", "recursive=true"),
        ("nonrecursive=true", "nonrecursive"),
        ("Recursive=true", "Recursive"),
        ("%2572ecursive=true", "%72ecursive"),
    ] {
        let query = Query::parse(Some(text)).expect("well-formed");
        assert_eq!(query.unknown(), Some(key));
        assert_eq!(query.to_string(), "", "an unknown key is not forwarded");
    }
}

#[test]
fn ambiguous_queries_are_refused() {
    for (text, error) in [
        ("alt=text;recursive=true", QueryError::Semicolon),
        ("re%08ecursive=true", QueryError::Control),
        ("alt=%0d%0aX:1", QueryError::Control),
        ("alt=%zz", QueryError::Encoding),
        ("alt=%f", QueryError::Encoding),
        ("alt=%", QueryError::Encoding),
        ("alt=%%41", QueryError::Encoding),
        ("alt=a%4%31", QueryError::Encoding),
        ("alt=%+1", QueryError::Encoding),
        ("alt=%C2%85", QueryError::Control),
        ("alt=%ff", QueryError::Encoding),
        ("alt=text&alt=json", QueryError::Repeated(Param::Alt)),
        ("recursive=false&recursive=true", QueryError::Repeated(Param::Recursive)),
        ("timeout_sec=-1&wait_for_change=true", QueryError::Timeout),
        ("wait_for_change=true&timeout_sec=1.5", QueryError::Timeout),
        ("wait_for_change=true&timeout_sec=", QueryError::Timeout),
        ("wait_for_change=true&timeout_sec=99999999999", QueryError::Timeout),
    ] {
        assert_eq!(Query::parse(Some(text)), Err(error), "{text}");
    }
}

/// The server ignores the parameter then.
#[test]
fn a_timeout_is_read_only_of_a_request_that_waits() {
    for timeout in ["timeout_sec=1.5", "timeout_sec=", "timeout_sec=-1&wait_for_change=false"] {
        let query = Query::parse(Some(timeout)).expect(timeout);
        assert_eq!((query.waits_for_change(), query.timeout_seconds()), (false, None), "{timeout}");
    }
}

proptest! {
    #[test]
    fn values_are_decoded_like_the_reference_decoder(text in "([a-c+]|%[0-7][0-9a-fA-F]|%c3%[89AB][0-9a-f]|%[0-9a-g]?|é){0,8}") {
        let escapes: Vec<&str> = text.split('%').skip(1).collect();
        let is_whole = |escape: &&str| escape.len() >= 2 && escape.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
        let spaced = text.replace('+', " ");
        let expected = match percent_decode_str(&spaced).decode_utf8() {
            Ok(value) if escapes.iter().all(is_whole) => Ok(value),
            _ => Err(QueryError::Encoding),
        };
        let expected = expected.and_then(|value| {
            if value.chars().any(char::is_control) { Err(QueryError::Control) } else { Ok(value) }
        });
        prop_assert_eq!(decode(&text), expected);
    }

    /// The upstream reads the query that the policy decided on.
    #[test]
    fn an_encoded_query_parses_to_itself(text in "((recursive|alt|scopes|audience|timeout_sec|x)(=([a-zé0-9+%/:?,@* ]|%[0-7][0-9a-f]){0,8})?&?){0,4}") {
        if let Ok(query) = Query::parse(Some(&text)) {
            let written = query.to_string();
            let again = Query::parse(written.strip_prefix('?')).expect("the encoded query is well-formed");
            prop_assert_eq!(&again.known, &query.known);
            prop_assert_eq!(again.unknown, None);
            prop_assert_eq!(query.encoded_len(), written.len());
        }
    }
}
