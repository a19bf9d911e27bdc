//! No module of `src/` imports another that imports it, directly or round a circle; nor does a file.
//!
//! This reads the source and not a build. Tests are left out: whoever tests a thing may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What imports what.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A source file: its module, and what its `use` declarations name, as absolute paths of modules.
struct Source {
    /// `crate::a::b` is `["a", "b"]`.
    module: Vec<String>,
    imports: Vec<Vec<String>>,
}

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let sources = sources();
    let top = |path: &[String]| path.first().cloned();
    let circles = circles(&graph(&sources, top));
    assert!(circles.is_empty(), "circles of modules in src/:\n{}", shown(&circles));
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let sources = sources();
    let files: BTreeSet<_> = sources.iter().map(|source| source.module.join("::")).collect();
    // The longest part of the path that is a file; what follows is an item of it.
    let file = |path: &[String]| {
        let parts = (1..=path.len()).rev().map(|length| path[..length].join("::"));
        parts.into_iter().find(|module| files.contains(module))
    };
    let mut graph = graph(&sources, file);
    // A module and its parts are one thing: parts use what the module declares for them.
    for (from, to) in &mut graph {
        to.retain(|to| !is_part_of(from, to) && !is_part_of(to, from));
    }
    let circles = circles(&graph);
    assert!(circles.is_empty(), "circles of files in src/:\n{}", shown(&circles));
}

#[test]
fn a_circle_is_found_and_shown() {
    let edge = |from: &str, to: &[&str]| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let graph = Graph::from([edge("a", &["b"]), edge("b", &["c"]), edge("c", &["a", "d"]), edge("d", &[])]);
    assert_eq!(circles(&graph), [["a", "b", "c"].map(str::to_owned)]);
    let source = "use crate::{error::Error, reply};\nuse super::{io, sibling::Thing};\n\
                  // use crate::comment;\n#[cfg(test)]\nmod tests {\n    use crate::only_in_tests;\n}\n";
    let imports = imports(source, &["server".to_owned(), "socket".to_owned()]);
    let imports: Vec<_> = imports.iter().map(|path| path.join("::")).collect();
    assert_eq!(imports, ["error::Error", "reply", "server::io", "server::sibling::Thing"]);
}

fn is_part_of(part: &str, whole: &str) -> bool {
    part.strip_prefix(whole).is_some_and(|rest| rest.starts_with("::"))
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    files_below(&root, &mut files);
    assert!(files.len() > 100, "the source is not where it was");
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

/// Nothing for tests, and for the crate's roots, which name everything.
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

/// What the `use` declarations of a file name, as paths from the crate's root.
fn imports(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut imports = Vec::new();
    let mut lines = production.lines();
    while let Some(line) = lines.next() {
        let Some(begun) = declaration(line) else { continue };
        let mut whole = begun.to_owned();
        while !whole.contains(';') {
            whole.push_str(lines.next().expect("a declaration ends"));
        }
        let paths = named(whole.split(';').next().unwrap_or_default());
        imports.extend(paths.iter().filter_map(|path| absolute(path, module)));
    }
    imports
}

/// What follows `use`, if a declaration begins on this line.
fn declaration(line: &str) -> Option<&str> {
    let (visibility, declaration) = line.split_once("use ")?;
    let visibility = visibility.trim();
    (visibility.is_empty() || visibility.starts_with("pub")).then_some(declaration)
}

/// Every path that a declaration names: `a::{b, c::D}` names `a::b` and `a::c::D`.
fn named(declaration: &str) -> Vec<String> {
    let Some((prefix, group)) = declaration.split_once('{') else {
        let path = declaration.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_owned()];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let mut depth = 0;
    let parts = group.split(|character| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        character == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty()).flat_map(named);
    parts.map(|part| format!("{}{part}", prefix.trim())).collect()
}

/// From the crate's root; nothing for what is of another crate.
fn absolute(path: &str, module: &[String]) -> Option<Vec<String>> {
    let mut names = path.split("::").map(|name| name.trim().to_owned());
    let mut base = match names.next()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len() - 1].to_vec(),
        _ => return None,
    };
    base.extend(names.filter(|name| name != "self"));
    Some(base)
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

/// Groups in which each reaches all others.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<_, _> = graph.keys().map(|from| (from, reached(graph, from))).collect();
    let mut circles: Vec<Vec<String>> = Vec::new();
    for (from, to) in &reach {
        let is_seen = circles.iter().any(|circle| circle.contains(from));
        if to.contains(*from) && !is_seen {
            let is_in =
                |other: &&String| to.contains(*other) && reach.get(*other).is_some_and(|back| back.contains(*from));
            circles.push(graph.keys().filter(is_in).cloned().collect());
        }
    }
    circles
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

fn shown(circles: &[Vec<String>]) -> String {
    circles.iter().fold(String::new(), |mut text, circle| {
        let _ = writeln!(text, "  {}", circle.join(", "));
        text
    })
}
