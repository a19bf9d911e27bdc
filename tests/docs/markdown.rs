//! Reads Markdown as far as the documentation uses it: headings, links, code spans and fenced code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::root;
use crate::shell::{self, Step};

/// Languages whose code is commands.
const SHELL: [&str; 2] = ["sh", "console"];

/// Top-level directories. A code span that begins with one is a path.
const DIRECTORIES: [&str; 9] =
    ["src/", "crates/", "tests/", "docs/", "deploy/", "benches/", "fuzz/", "policies/", ".github/"];

/// Programs whose commands are checked in code spans, too.
const SPAN_PROGRAMS: [&str; 4] = ["cargo ", "gce-metadata-proxy ", "kubectl ", "helm "];

/// A Markdown file.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    /// Lines outside fenced code.
    prose: Vec<String>,
    fences: Vec<Fence>,
}

struct Fence {
    language: String,
    text: String,
}

pub(crate) struct Link {
    pub(crate) to: String,
}

impl Page {
    pub(crate) fn read(path: &Path) -> Self {
        Self::parse(path, &fs::read_to_string(path).expect("a Markdown file"))
    }

    /// Reads `text` as if it were in the file `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Self {
        let mut page = Self { path: path.to_owned(), prose: Vec::new(), fences: Vec::new() };
        let mut open: Option<Fence> = None;
        for line in text.lines() {
            match (&mut open, line.trim_start().strip_prefix("```")) {
                (None, Some(language)) => open = Some(Fence { language: language.to_owned(), text: String::new() }),
                (None, None) => page.prose.push(line.to_owned()),
                (Some(_), Some(_)) => page.fences.extend(open.take()),
                (Some(fence), None) => fence.text.extend([line, "\n"]),
            }
        }
        assert!(open.is_none(), "{}: a fence is not closed", page.name());
        page
    }

    /// The path within the repository.
    pub(crate) fn name(&self) -> String {
        self.path.strip_prefix(root()).expect("below the root").display().to_string()
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = Link> + '_ {
        let text = without_code_spans(&self.prose.join("\n"));
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned);
        let references = text.lines().filter(|line| line.starts_with('['));
        let references = references.filter_map(|line| Some(line.split_once("]: ")?.1.trim().to_owned()));
        inline.chain(references).map(|to| Link { to }).collect::<Vec<_>>().into_iter()
    }

    pub(crate) fn broken_links(&self) -> Vec<String> {
        let broken = |link: Link| {
            let mistake = self.follow(&link.to).err()?;
            Some(format!("{}: {}: {mistake}", self.name(), link.to))
        };
        self.links().filter_map(broken).collect()
    }

    fn follow(&self, to: &str) -> Result<(), &'static str> {
        if to.starts_with("https://") || to.starts_with("http://") {
            return Ok(());
        }
        let (file, anchor) = to.split_once('#').map_or((to, None), |(file, anchor)| (file, Some(anchor)));
        let path = self.directory().join(file);
        if !file.is_empty() && !path.exists() {
            return Err("no such file");
        }
        let Some(anchor) = anchor else { return Ok(()) };
        let anchors = if file.is_empty() { self.anchors() } else { Self::read(&path).anchors() };
        if anchors.iter().any(|known| known == anchor) { Ok(()) } else { Err("no such heading") }
    }

    fn directory(&self) -> &Path {
        self.path.parent().expect("a file is in a directory")
    }

    /// The anchors that GitHub makes of headings.
    fn anchors(&self) -> Vec<String> {
        let mut seen = BTreeMap::<String, usize>::new();
        let headings = self.prose.iter().filter(|line| line.starts_with('#'));
        let anchor = |line: &String| {
            let slug = slug(line.trim_start_matches('#'));
            let before = seen.entry(slug.clone()).or_default();
            *before += 1;
            if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
        };
        headings.map(anchor).collect()
    }

    /// Code spans, each on one line.
    pub(crate) fn code_spans(&self) -> Vec<String> {
        let spans = |line: &String| line.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        self.prose.iter().flat_map(spans).collect()
    }

    /// The commands of the page in order: those in fences, then those in code spans.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let fences = self.fences.iter().filter(|fence| SHELL.contains(&&*fence.language));
        let mut steps: Vec<Step> =
            fences.flat_map(|fence| shell::steps(&fence.text, fence.language == "console")).collect();
        let is_command = |span: &String| SPAN_PROGRAMS.iter().any(|program| span.starts_with(program));
        for span in self.code_spans().into_iter().filter(is_command) {
            steps.extend(shell::steps(&span, false).into_iter().map(Step::into_mention));
        }
        steps
    }

    /// Code in which commands would not be found.
    pub(crate) fn unchecked_code(&self) -> Vec<String> {
        let known = ["sh", "console", "text", "yaml", "rust", "toml"];
        let fences = self.fences.iter().filter(|fence| !known.contains(&&*fence.language));
        let fences = fences.map(|fence| format!("{}: a fence with the language {:?}", self.name(), fence.language));
        let indented = self.prose.windows(2).filter(|pair| pair[0].is_empty() && pair[1].starts_with("    "));
        fences.chain(indented.map(|pair| format!("{}: indented: {}", self.name(), pair[1]))).collect()
    }
}

/// Whether a code span is a path of this repository, without placeholders.
pub(crate) fn is_path_of_repository(span: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    DIRECTORIES.iter().any(|directory| span.starts_with(directory)) && span.chars().all(is_plain)
}

fn without_code_spans(text: &str) -> String {
    let line = |line: &str| line.split('`').step_by(2).collect::<Vec<_>>().join("code");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Lowercase, spaces as hyphens, without punctuation.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(slug(" What a request becomes: `explain`"), "what-a-request-becomes-explain");
    assert_eq!(slug(" Update, roll back, remove"), "update-roll-back-remove");
}
