//! No module of a crate imports another that imports it, directly or through a cycle; nor does a file. What crates must not
//! import, they do not depend on ([`CRATES`]), so Cargo refuses it.
//!
//! The test reads the source, not a build. It follows `use` declarations and paths in code that start with `crate`,
//! `super` or `self`. Tests are left out: they may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The sources of each crate.
const FOLDERS: [&str; 10] = [
    "src",
    "crates/base/src",
    "crates/http-client/src",
    "crates/identity/src",
    "crates/mock/src",
    "crates/operator/src",
    "crates/protocol/src",
    "crates/proxy/src",
    "crates/redirect/src",
    "crates/telemetry/src",
];

/// The modules or files that each one imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A source file.
struct Source {
    /// Its module: `crate::a::b` is `["a", "b"]`.
    module: Vec<String>,
    /// What it names, as paths from the crate root.
    imports: Vec<Vec<String>>,
}

#[test]
fn modules_have_no_import_cycle() {
    for folder in FOLDERS {
        let top = |path: &[String]| path.first().cloned();
        let cycles = cycles(&graph(&sources(folder), top));
        assert!(cycles.is_empty(), "import cycles between modules of {folder}:\n{}", shown(&cycles));
    }
}

#[test]
fn files_have_no_import_cycle() {
    for folder in FOLDERS {
        let cycles = cycles(&files(&sources(folder)));
        assert!(cycles.is_empty(), "import cycles between files of {folder}:\n{}", shown(&cycles));
    }
}

/// The files that each file imports. A module and its submodules count as one: submodules use what the module declares for them.
fn files(sources: &[Source]) -> Graph {
    let files: BTreeSet<_> = sources.iter().map(|source| source.module.join("::")).collect();
    // The longest prefix of the path that is a file; the rest is an item in it.
    let file = |path: &[String]| {
        let parts = (1..=path.len()).rev().map(|length| path[..length].join("::"));
        parts.into_iter().find(|module| files.contains(module))
    };
    let mut graph = graph(sources, file);
    for (from, to) in &mut graph {
        to.retain(|to| !is_part_of(from, to) && !is_part_of(to, from));
    }
    graph
}

/// A crate, and dependencies that it must not have.
struct Crate {
    name: &'static str,
    not: &'static [&'static str],
    why: &'static str,
}

const CRATES: &[Crate] = &[
    Crate {
        name: "protocol",
        not: &[
            "base",
            "hyper",
            "hyper-util",
            "mock",
            "prometheus",
            "redirect",
            "telemetry",
            "tokio",
            "tower",
            "tracing",
        ],
        why: "a verdict depends on the request and the policy, and on no socket and no clock",
    },
    Crate {
        name: "redirect",
        not: &["http", "hyper", "hyper-util", "mock", "protocol", "serde", "serde_json", "tower"],
        why: "what may change the node's network does not read what pods send",
    },
    Crate {
        name: "mock",
        not: &["protocol", "redirect", "gce-metadata-proxy"],
        why: "a mistake in the proxy's parsing must not be repeated in what tests it",
    },
    Crate {
        name: "telemetry",
        not: &["hyper", "hyper-util", "proxy", "http-client", "identity", "operator", "redirect", "tower"],
        why: "metrics open no sockets",
    },
    Crate {
        name: "proxy",
        not: &[
            "http-client",
            "identity",
            "kube",
            "k8s-openapi",
            "mock",
            "operator",
            "redirect",
            "rustls",
            "tokio-rustls",
        ],
        why: "the path of a request does not know how pods are identified, Kubernetes, or TLS",
    },
    Crate {
        name: "identity",
        not: &["mock", "operator", "redirect"],
        why: "which pod asks does not depend on what operators see",
    },
    Crate { name: "operator", not: &["mock"], why: "a command for operators that had a fake could show it" },
];

#[test]
fn crates_lack_what_they_must_not_import() {
    for Crate { name, not, why } in CRATES {
        let manifest = root_folder().join("crates").join(name).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("a manifest");
        let section = |head: &str| text.split(head).nth(1).and_then(|rest| rest.split("\n[").next());
        let dependencies = section("\n[dependencies]\n").expect("there is one");
        let lines = dependencies.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| line.split([' ', '.']).next());
        let forbidden: Vec<_> = names.filter(|name| not.contains(name)).collect();
        assert!(forbidden.is_empty(), "{name} depends on {forbidden:?}: {why}");
    }
}

#[test]
fn a_cycle_is_found_and_shown() {
    let edge = |from: &str, to: &[&str]| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let graph = Graph::from([edge("a", &["b"]), edge("b", &["c"]), edge("c", &["a", "d"]), edge("d", &[])]);
    assert_eq!(cycles(&graph), [["a", "b", "c"].map(str::to_owned)]);
}

#[test]
fn imports_are_found_in_declarations_and_in_code() {
    let source = r##"
        use crate::{error::Error, reply::{self as other, Body}};
        pub(super) use super::{io, sibling::Thing};
        use std::fmt;
        /// crate::documentation
        // crate::comment
        pub(in crate::visibility) fn f(peer: &crate::a::Peer) -> [u8; super::size::MAX] {
            let text = "crate::string"; let raw = r#"use crate::raw;"#; let mark = '"';
            println!("{}", super::super::b::c::<crate::d::T>(text));
            self.field
        }
        mod inline { use super::near::X; fn f() { self::g() } }
        #[cfg(test)] fn g() { crate::only_in_tests() }
        #[cfg(test)]
        mod checks { use crate::only_in_tests; }
        fn last() { crate::last::f(); }
    "##;
    let imports = imports(source, &["server".to_owned(), "socket".to_owned()]);
    let imports: Vec<_> = imports.iter().map(|path| path.join("::")).collect();
    let expected = [
        "error::Error",
        "reply",
        "reply::Body",
        "server::io",
        "server::sibling::Thing",
        "a::Peer",
        "server::size::MAX",
        "b::c",
        "d::T",
        "server::socket::near::X",
        "server::socket::inline::g",
        "last::f",
    ];
    assert_eq!(imports, expected);
}

fn is_part_of(part: &str, whole: &str) -> bool {
    part.strip_prefix(whole).is_some_and(|rest| rest.starts_with("::"))
}

fn root_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<Source> {
    let root = root_folder().join(folder);
    let mut files = Vec::new();
    files_below(&root, &mut files);
    assert!(files.len() > 3, "found only {} files in {}", files.len(), root.display());
    files.iter().filter_map(|file| source(&root, file)).collect()
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Reads a file. `None` for tests, and for the crate's roots, which name everything.
fn source(root: &Path, file: &Path) -> Option<Source> {
    let inside = file.strip_prefix(root).expect("it is below");
    let mut module: Vec<String> =
        inside.with_extension("").iter().map(|part| part.to_str().expect("UTF-8").to_owned()).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    let name = module.last()?;
    let is_test = module.iter().any(|name| name == "tests") || is_declared_for_tests(file, name);
    if is_test || ["lib", "main"].contains(&name.as_str()) {
        return None;
    }
    let text = fs::read_to_string(file).expect("a source file");
    let imports = imports(&text, &module);
    Some(Source { module, imports })
}

/// Whether the module that declares this file does so for tests only.
fn is_declared_for_tests(file: &Path, name: &str) -> bool {
    let folder = file.parent().expect("a folder");
    let parents = [folder.join("mod.rs"), folder.with_extension("rs"), folder.join("lib.rs")];
    let declaration = format!("mod {name};");
    parents.iter().filter_map(|parent| fs::read_to_string(parent).ok()).any(|text| {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        lines.windows(2).any(|pair| pair[0] == "#[cfg(test)]" && pair[1].ends_with(&declaration))
    })
}

/// The items that a file names, as paths from the crate root. Items of other crates are left out.
fn imports(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut imports = Vec::new();
    scan(text.parse().expect("the source consists of Rust tokens"), module, &mut imports);
    imports
}

/// Collects the paths among these tokens of a module. Comments are not tokens, and a string is one token.
fn scan(tokens: TokenStream, module: &[String], imports: &mut Vec<Vec<String>>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    loop {
        rest = match rest {
            [] => return,
            [mark, TokenTree::Group(attribute), rest @ ..] if is(mark, "#") && is_cfg_test(attribute) => {
                after_item(rest)
            }
            [keyword, TokenTree::Ident(name), TokenTree::Group(body), rest @ ..] if is(keyword, "mod") => {
                scan(body.stream(), &[module, &[name.to_string()]].concat(), imports);
                rest
            }
            [head, colon, second, rest @ ..] if is(colon, ":") && is(second, ":") => match root(head, module) {
                Some(base) => follow(base, rest, imports),
                None => rest,
            },
            [TokenTree::Group(group), rest @ ..] => {
                if !is_visibility(group) {
                    scan(group.stream(), module, imports);
                }
                rest
            }
            [_, rest @ ..] => rest,
        };
    }
}

/// The module that a path starts from, if it is one of this crate.
fn root(head: &TokenTree, module: &[String]) -> Option<Vec<String>> {
    match head {
        TokenTree::Ident(head) => match head.to_string().as_str() {
            "crate" => Some(Vec::new()),
            "self" => Some(module.to_vec()),
            "super" => Some(module[..module.len() - 1].to_vec()),
            _ => None,
        },
        _ => None,
    }
}

/// Follows a path, or the tree of a `use` declaration, and returns the tokens after it.
fn follow<'a>(mut base: Vec<String>, tokens: &'a [TokenTree], imports: &mut Vec<Vec<String>>) -> &'a [TokenTree] {
    match tokens {
        [TokenTree::Ident(name), rest @ ..] => {
            match name.to_string().as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                name => base.push(name.to_owned()),
            }
            if let [colon, second, rest @ ..] = rest
                && is(colon, ":")
                && is(second, ":")
            {
                return follow(base, rest, imports);
            }
            imports.push(base);
            rest
        }
        [TokenTree::Group(group), rest @ ..] if group.delimiter() == Delimiter::Brace => {
            let group: Vec<_> = group.stream().into_iter().collect();
            for branch in group.split(|token| is(token, ",")).filter(|branch| !branch.is_empty()) {
                follow(base.clone(), branch, imports);
            }
            rest
        }
        // A glob, or type arguments.
        _ => {
            imports.push(base);
            tokens
        }
    }
}

fn is(token: &TokenTree, text: &str) -> bool {
    matches!(token, TokenTree::Ident(_) | TokenTree::Punct(_)) && token.to_string() == text
}

fn is_cfg_test(attribute: &Group) -> bool {
    attribute.stream().to_string().replace(' ', "") == "cfg(test)"
}

/// The `(in path)` of a visibility names a module without importing it.
fn is_visibility(group: &Group) -> bool {
    group.stream().into_iter().next().is_some_and(|first| is(&first, "in"))
}

/// The tokens after an item, a field, a variant or a match arm.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_last = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is(token, ";") || is(token, ","),
    };
    let last = tokens.iter().position(is_last);
    last.map_or(&[], |last| &tokens[last + 1..])
}

fn graph(sources: &[Source], node: impl Fn(&[String]) -> Option<String>) -> Graph {
    let mut graph = Graph::new();
    for source in sources {
        let Some(from) = node(&source.module) else { continue };
        let to: BTreeSet<_> = source.imports.iter().filter_map(|path| node(path)).filter(|to| *to != from).collect();
        graph.entry(from).or_default().extend(to);
    }
    graph
}

/// Groups whose members all reach each other.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<_, _> = graph.keys().map(|from| (from, reached(graph, from))).collect();
    let mut cycles: Vec<Vec<String>> = Vec::new();
    for (from, to) in &reach {
        let is_seen = cycles.iter().any(|cycle| cycle.contains(from));
        if to.contains(*from) && !is_seen {
            let is_in =
                |other: &&String| to.contains(*other) && reach.get(*other).is_some_and(|back| back.contains(*from));
            cycles.push(graph.keys().filter(is_in).cloned().collect());
        }
    }
    cycles
}

fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut todo: Vec<_> = graph.get(from).into_iter().flatten().collect();
    while let Some(next) = todo.pop() {
        if reached.insert(next.clone()) {
            todo.extend(graph.get(next).into_iter().flatten());
        }
    }
    reached
}

fn shown(cycles: &[Vec<String>]) -> String {
    cycles.iter().fold(String::new(), |mut text, cycle| {
        let _ = writeln!(text, "  {}", cycle.join(", "));
        text
    })
}
