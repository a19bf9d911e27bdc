//! The documentation is true: links lead somewhere, commands work, shown output is what is printed, and tables are complete.
//!
//! Nothing here uses the network. Links are checked in every Markdown file; commands in `docs/` and in the files of [`MANUAL`]. A command that no rule in `rules.rs` knows is an error, so that a new program is added on purpose.

mod cluster;
mod demo;
mod markdown;
mod rules;
mod shell;
mod wrong;

use std::fs;
use std::path::{Path, PathBuf};

use markdown::Page;

/// Pages outside of `docs/` whose commands are checked.
const MANUAL: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "deploy/observability/README.md"];

/// Maximum size of the README, in bytes. It is one page; details belong in `docs/`.
const MAX_README_BYTES: usize = 6_000;

/// Paths in the text that are examples.
const EXAMPLE_PATHS: [&str; 2] = ["crates/proxy/src/layers/user_agent.rs", "deploy/overlays/mine"];

/// The directory of the package.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below a directory of the repository that end with `suffix`, without what is built or generated.
fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        if entry.is_dir() && !["target", ".git", "node_modules", ".venv"].contains(&&*name) {
            found.extend(files(&entry, suffix));
        } else if entry.is_file() && name.ends_with(suffix) {
            found.push(entry);
        }
    }
    found
}

fn pages() -> Vec<Page> {
    files(root(), ".md").into_iter().map(|path| Page::read(&path)).collect()
}

/// The pages whose commands are checked.
fn manual() -> Vec<Page> {
    let is_manual = |page: &Page| {
        let path = page.path.strip_prefix(root()).expect("below the root");
        path.starts_with("docs") || MANUAL.iter().any(|page| path == Path::new(page))
    };
    pages().into_iter().filter(is_manual).collect()
}

#[track_caller]
fn assert_none(what: &str, mistakes: &[String]) {
    assert!(mistakes.is_empty(), "{what}:\n{}", mistakes.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let mistakes: Vec<_> = pages.iter().flat_map(Page::broken_links).collect();
    assert_none("broken links", &mistakes);
    assert!(pages.iter().map(|page| page.links().count()).sum::<usize>() > 50, "links are found");
}

#[test]
fn paths_in_the_text_exist() {
    let mut mistakes = Vec::new();
    for page in manual() {
        let spans = page.code_spans();
        let paths = spans.iter().filter(|span| markdown::is_path_of_repository(span));
        let missing = paths.filter(|path| !root().join(path).exists() && !EXAMPLE_PATHS.contains(&&***path));
        mistakes.extend(missing.map(|path| format!("{}: {path}", page.name())));
    }
    assert_none("paths that do not exist", &mistakes);
}

#[test]
fn commands_work_and_print_what_is_shown() {
    let mut mistakes = Vec::new();
    let mut checked = 0;
    for page in manual() {
        let mut rules = rules::Rules::installed();
        for step in page.steps() {
            checked += 1;
            if let Err(mistake) = rules.check(&step) {
                mistakes.push(format!("{}: {}: {mistake}", page.name(), step.words.join(" ")));
            }
        }
    }
    assert_none("commands that do not work", &mistakes);
    assert!(checked > 40, "commands are found");
}

#[test]
fn code_is_fenced_and_has_a_language() {
    let mistakes: Vec<_> = manual().iter().flat_map(Page::unchecked_code).collect();
    assert_none("code that no test would read", &mistakes);
}

#[test]
fn the_readme_is_one_page() {
    let size = fs::metadata(root().join("README.md")).expect("a README").len();
    assert!(size <= MAX_README_BYTES as u64, "README.md has {size} bytes; at most {MAX_README_BYTES}");
}

#[test]
fn every_page_of_docs_is_in_its_index() {
    let index = Page::read(&root().join("docs/README.md"));
    let linked: Vec<_> = index.links().map(|link| link.to.clone()).collect();
    let names = files(&root().join("docs"), ".md")
        .into_iter()
        .map(|path| path.strip_prefix(root().join("docs")).expect("below docs").to_string_lossy().into_owned());
    let missing: Vec<_> = names.filter(|name| name != "README.md" && !linked.contains(name)).collect();
    assert_none("pages that docs/README.md does not link", &missing);
}

/// The texts behind `field` in a source file of the test of clients.
fn texts(file: &str, field: &str) -> Vec<String> {
    let source = fs::read_to_string(root().join("tests/clients").join(file)).expect("a source file");
    let before = format!("{field}: \"");
    let texts = source.split(&before).skip(1).filter_map(|rest| rest.split('"').next());
    // A backslash at the end of a line continues the text behind the next line's indentation.
    let whole = |text: &str| {
        let mut lines = text.split("\\\n");
        let first = lines.next().unwrap_or_default().to_owned();
        lines.fold(first, |whole, line| whole + line.trim_start())
    };
    texts.map(whole).collect()
}

#[test]
fn the_table_of_clients_has_every_client_situation_and_exception() {
    let page = fs::read_to_string(root().join("docs/clients.md")).expect("the page");
    let weathers = texts("weather.rs", "Weather { name");
    assert_eq!(weathers.len(), 11, "{weathers:?}");
    let head = format!("| client | version | {} |\n", weathers.join(" | "));
    let (_, table) = page.split_once(&head).unwrap_or_else(|| panic!("the head of the table should be:\n{head}"));
    // The line below the head has dashes.
    let shown: Vec<_> = table.lines().skip(1).take_while(|line| line.starts_with("| ")).collect();
    let lists = ["client/list.rs", "client/programs.rs"];
    let of_all = |field| lists.into_iter().flat_map(move |list| texts(list, field));
    // Its language follows in parentheses.
    let rows: Vec<_> = of_all("\n        library").map(|library| format!("| {library} (")).collect();
    assert!(!rows.is_empty());
    assert_eq!(shown.len(), rows.len(), "{rows:?}");
    for row in &rows {
        assert!(
            shown.iter().any(|line| line.starts_with(row)),
            "docs/clients.md should have a row that begins with {row}"
        );
    }
    let (clients, situations) = (rows.len(), weathers.len());
    for (page, says) in [
        (
            "README.md",
            format!("[{clients} versions of clients](docs/clients.md) are tested, in up to {situations} situations"),
        ),
        (
            "docs/README.md",
            format!("{clients} versions of clients, and how they behave in up to {situations} situations"),
        ),
        ("CONTRIBUTING.md", format!("{clients} versions of clients, in up to {situations} situations")),
    ] {
        assert!(rules::text(page).contains(&says), "{page} should say: {says}");
    }
    let reasons = texts("expected.rs", "reason");
    for (at, reason) in reasons.iter().enumerate() {
        let note = format!("\n{}. {reason}\n", at + 1);
        assert!(page.contains(&note), "docs/clients.md should have the note:{note}");
    }
}
