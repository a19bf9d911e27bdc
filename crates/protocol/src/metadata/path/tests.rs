use proptest::prelude::*;

use super::*;

fn parse(path: &str) -> Result<String, PathError> {
    let target = path.parse().expect("a request target that the http crate accepts");
    MetadataPath::parse(&target).map(|path| path.to_string())
}

#[test]
fn a_canonical_path_is_kept_as_sent() {
    for path in ["/", "/computeMetadata/v1/", "/computeMetadata/v1/instance/service-accounts/a@b.c/token"] {
        assert_eq!(parse(path).as_deref(), Ok(path));
    }
}

#[test]
fn a_common_path_is_recognised_in_every_spelling() {
    for common in CommonPath::ALL {
        let text = common.as_str();
        assert!(is_canonical(text.as_bytes()), "{text}");
        assert_eq!(CommonPath::ALL[common as usize], common, "{text}");
        for spelling in [text.to_owned(), format!("{text}?alt=json"), text.replace('/', "//./")] {
            let path = MetadataPath::parse(&spelling.parse().expect("a target")).expect("a path");
            assert_eq!((path.common(), path.as_str()), (Some(common), text), "{spelling}");
        }
        for other in [format!("{text}x"), format!("{text}/x"), text.to_ascii_uppercase(), text[..9].to_owned()] {
            let path = MetadataPath::parse(&other.parse().expect("a target")).expect("a path");
            assert_eq!(path.common(), None, "{other}");
        }
    }
}

#[test]
fn an_older_name_is_the_same_path() {
    for name in ["universe/universe_domain", "universe//universe_domain"] {
        let path = format!("/computeMetadata/v1/{name}");
        let path = MetadataPath::parse(&path.parse().expect("a target")).expect("a path");
        assert_eq!(path.common(), Some(CommonPath::UniverseDomain), "{name}");
    }
}

#[test]
fn the_query_is_not_part_of_the_path() {
    assert_eq!(parse("/a/b?recursive=true/../").as_deref(), Ok("/a/b"));
    assert_eq!(parse("/a//b?c=%2F").as_deref(), Ok("/a/b"));
}

#[test]
fn slashes_and_dots_collapse_and_a_trailing_slash_is_kept() {
    for (sent, read) in [
        ("//", "/"),
        ("/a//b", "/a/b"),
        ("/a/./b/", "/a/b/"),
        ("/a/x/../b", "/a/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/a/..", "/"),
        ("/...", "/..."),
    ] {
        assert_eq!(parse(sent).as_deref(), Ok(read), "{sent}");
    }
}

#[test]
fn an_escaped_at_sign_is_decoded() {
    assert_eq!(parse("/a%40b.c/email").as_deref(), Ok("/a@b.c/email"));
}

#[test]
fn ambiguous_paths_are_refused() {
    for (path, error) in [
        ("/attributes%2Fkube-env", PathError::EncodedSeparator),
        ("/attributes%5ckube-env", PathError::EncodedSeparator),
        ("/attributes\\kube-env", PathError::Backslash),
        ("/kube-env%00", PathError::Control),
        ("/kube-env%0d%0aX:1", PathError::Control),
        ("/kube%252Denv", PathError::EncodedTwice),
        ("/../x", PathError::ClimbsAboveRoot),
        ("/a/../../x", PathError::ClimbsAboveRoot),
        ("/kube%2", PathError::BrokenEscape),
        ("/kube%zzenv", PathError::BrokenEscape),
        ("/kube%+1env", PathError::BrokenEscape),
    ] {
        assert_eq!(parse(path), Err(error), "{path}");
        assert!(error.is_evasion(), "{path}");
    }
}

#[test]
fn impossible_paths_are_not_found() {
    for (path, error) in [
        ("/kube%2Denv", PathError::NeedlessEscape('-')),
        ("/%2e%2e/x", PathError::NeedlessEscape('.')),
        ("/kube-env;x", PathError::Foreign(b';')),
        ("/kube-env%20", PathError::Foreign(b' ')),
        ("/kube-env%3bx", PathError::Foreign(b';')),
        ("/k\u{fc}be", PathError::Foreign(0xc3)),
    ] {
        assert_eq!(parse(path), Err(error), "{path}");
        assert!(!error.is_evasion(), "{path}");
    }
}

proptest! {
    /// An accepted path parses to itself, so the upstream cannot read it differently.
    #[test]
    fn parsing_is_idempotent(path in "/([a-c@.%/;4052EF\\\\-]{0,24})") {
        if let Ok(target) = path.parse::<PathAndQuery>() && let Ok(once) = MetadataPath::parse(&target) {
            prop_assert_eq!(parse(once.as_str()), Ok(once.to_string()));
            prop_assert!(is_canonical(once.as_str().as_bytes()));
            prop_assert!(!once.as_str().contains("//") && !once.as_str().contains('%'));
        }
    }
}
