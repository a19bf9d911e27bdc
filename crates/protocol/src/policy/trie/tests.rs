use super::*;

/// Rules that allow, followed by rules that conceal.
fn trie(allowed: &[&str], concealed: &[&str]) -> Trie {
    let mut trie = Trie::new();
    let rulings = [(Ruling::Allow, allowed), (Ruling::Conceal, concealed)];
    let patterns = rulings.iter().flat_map(|(ruling, patterns)| patterns.iter().map(move |text| (*ruling, *text)));
    for (order, (ruling, text)) in patterns.enumerate() {
        trie.add(&text.parse().expect("a pattern"), ruling, order);
    }
    trie
}

#[test]
fn the_first_matching_rule_wins() {
    let trie = trie(&["instance/*/b", "instance/a/*", "instance/a/b", "**/b"], &[]);
    assert_eq!(trie.walk("instance/a/b").allowed_by, Some(0));
    assert_eq!(trie.walk("instance/a/c").allowed_by, Some(1));
    assert_eq!(trie.walk("project/x/y/b").allowed_by, Some(3));
    assert_eq!(trie.walk("instance/a").allowed_by, None);
}

#[test]
fn one_walk_finds_both_rulings() {
    let trie = trie(&["instance/ssh-keys", "instance/**"], &["instance/*/sshKeys", "instance/ssh-keys"]);
    let found = |allowed_by, leads_to, concealed_by| Matches { allowed_by, leads_to, concealed_by };
    assert_eq!(trie.walk("instance/ssh-keys"), found(Some(0), Some(0), Some(3)));
    assert_eq!(trie.walk("instance/SSHkeys"), found(Some(1), Some(1), Some(3)));
    assert_eq!(trie.walk("instance/a/ssh-keys/b"), found(Some(1), Some(1), Some(2)));
    assert_eq!(trie.walk("Instance/a/ssh-keys"), found(None, None, Some(2)));
    assert_eq!(trie.walk("project"), Matches::default());
}

#[test]
fn concealing_a_directory_conceals_everything_below_it() {
    let trie = trie(&[], &["instance/credentials"]);
    assert_eq!(trie.walk("instance/credentials/x/y").concealed_by, Some(0));
    assert_eq!(trie.walk("instance/credentials").concealed_by, Some(0));
    assert_eq!(trie.walk("instance").concealed_by, None);
}

#[test]
fn allowing_a_directory_allows_nothing_below_it() {
    let trie = trie(&["instance/attributes"], &[]);
    assert_eq!(trie.walk("instance/attributes").allowed_by, Some(0));
    assert_eq!(trie.walk("instance/attributes/x"), Matches::default());
}

#[test]
fn a_double_star_matches_no_segment_and_many() {
    let trie = trie(&["instance/service-accounts/**", "instance/**/mtu"], &[]);
    assert_eq!(trie.walk("instance/service-accounts").allowed_by, Some(0));
    assert_eq!(trie.walk("instance/service-accounts/a/b/c").allowed_by, Some(0));
    assert_eq!(trie.walk("instance/mtu").allowed_by, Some(1));
    assert_eq!(trie.walk("instance/a/0/mtu").allowed_by, Some(1));
    assert_eq!(trie.walk("instance/a/0").allowed_by, None);
}

#[test]
fn rules_that_conceal_ignore_case_hyphens_and_underscores() {
    let trie = trie(&[], &["instance/attributes/ssh-keys", "instance/attributes/windows-*"]);
    for (name, order) in [
        ("ssh-keys", 0),
        ("sshKeys", 0),
        ("SSH-KEYS", 0),
        ("ssh_keys", 0),
        ("_ssh__keys_", 0),
        ("windowsKeys", 1),
        ("Windows-X", 1),
        ("windows_x", 1),
    ] {
        assert_eq!(trie.walk(&format!("Instance/attributes/{name}")).concealed_by, Some(order), "{name}");
    }
}

#[test]
fn rules_that_allow_match_exactly() {
    let trie = trie(&["instance/sshKeys", "instance/ssh-keys", "instance/windows-*"], &[]);
    for (name, order) in
        [("sshKeys", Some(0)), ("ssh-keys", Some(1)), ("sshkeys", None), ("windows-x", Some(2)), ("windowsx", None)]
    {
        assert_eq!(trie.walk(&format!("instance/{name}")).allowed_by, order, "{name}");
    }
}

#[test]
fn many_names_in_one_directory_are_distinguished() {
    let names: Vec<String> = ('a'..='z').rev().flat_map(|a| [format!("{a}-"), format!("{a}-B"), a.into()]).collect();
    let patterns: Vec<String> = names.iter().map(|name| format!("instance/{name}")).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let (strict, lenient) = (trie(&patterns, &[]), trie(&[], &patterns));
    for (order, pattern) in patterns.iter().enumerate() {
        assert_eq!(strict.walk(pattern).allowed_by, Some(order), "{pattern}");
        assert_eq!(strict.walk(&pattern.replace('-', "_")).allowed_by.is_some(), !pattern.contains('-'), "{pattern}");
        // `a-` and `a` are one name.
        let first = if pattern.ends_with('-') || pattern.ends_with('B') { order } else { order - 2 };
        assert_eq!(lenient.walk(&pattern.to_ascii_uppercase()).concealed_by, Some(first), "{pattern}");
    }
}

#[test]
fn a_long_name_matches_like_a_short_one() {
    let hyphens = "-".repeat(MAX_INLINE_NAME_BYTES);
    let long = format!("instance/{}", "x".repeat(MAX_INLINE_NAME_BYTES + 1));
    let trie = trie(&[&long, "instance/-"], &[&long, "instance/ssh-keys", "instance/windows-*", "project/-"]);
    let found = |path: &str| (trie.walk(path).allowed_by, trie.walk(path).concealed_by);
    assert_eq!(found(&long), (Some(0), Some(2)));
    assert_eq!(found(&format!("{long}-")), (None, Some(2)));
    assert_eq!(found(&format!("{long}x")), (None, None));
    assert_eq!(found(&format!("instance/{hyphens}SSH{hyphens}keys/x")), (None, Some(3)));
    assert_eq!(found(&format!("instance/win{hyphens}dows{hyphens}x")), (None, Some(4)));
    assert_eq!(found(&format!("project/{hyphens}-")), (None, Some(5)));
    assert_eq!(found(&format!("instance/{hyphens}-")), (None, None));
}

/// A metadata key may be named `-`.
#[test]
fn a_name_of_hyphens_matches_a_star() {
    let trie = trie(&[], &["instance/attributes/*", "instance/service-accounts/*/identity", "project/-/x"]);
    for path in ["instance/attributes/-", "instance/attributes/--/x"] {
        assert_eq!(trie.walk(path).concealed_by, Some(0), "{path}");
    }
    assert_eq!(trie.walk("instance/service-accounts/-/identity").concealed_by, Some(1));
    assert_eq!(trie.walk("project/--/x").concealed_by, Some(2));
    assert_eq!(trie.walk("project/x").concealed_by, None);
}

#[test]
fn a_directory_leads_to_paths_below_it() {
    let trie = trie(&["instance/attributes/cluster-name", "project/**/x"], &[]);
    for path in ["", "instance", "instance/attributes", "instance/attributes/cluster-name"] {
        assert_eq!(trie.walk(path).leads_to, Some(0), "{path}");
    }
    assert_eq!(trie.walk("project/a/b").leads_to, Some(1));
    assert_eq!(trie.walk("instance/disks").leads_to, None);
}
