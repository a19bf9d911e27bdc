//! Splits shell code into commands, as far as the documentation uses the shell.

/// A command.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Variables that are set for this command.
    pub(crate) variables: Vec<String>,
    /// The program and its arguments.
    pub(crate) words: Vec<String>,
    /// A file that it writes, and the text of a here-document.
    pub(crate) file: Option<String>,
    pub(crate) input: Option<String>,
    /// What it prints, if that is shown.
    pub(crate) output: Option<String>,
    /// Only mentioned in the text, perhaps with placeholders: it is parsed and not run.
    pub(crate) is_mention: bool,
}

impl Step {
    pub(crate) fn into_mention(self) -> Self {
        Self { is_mention: true, ..self }
    }
}

/// The commands of a block. In a console, commands begin with `$ ` and their output follows.
pub(crate) fn steps(text: &str, is_console: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let command = if is_console { line.strip_prefix("$ ") } else { Some(line) };
        let Some(command) = command else {
            let last = steps.last_mut().expect("output follows a command");
            last.output.get_or_insert_default().extend([line, "\n"]);
            continue;
        };
        let mut command = command.to_owned();
        while let Some(begun) = command.strip_suffix('\\') {
            command = format!("{begun}{}", lines.next().unwrap_or_default());
        }
        let mut parts = split(&command);
        if let Some(end) = parts.iter_mut().find_map(|step| step.input.take()) {
            let text: String = lines.by_ref().take_while(|line| *line != end).flat_map(|line| [line, "\n"]).collect();
            parts.last_mut().expect("it has a here-document").input = Some(text);
        }
        steps.extend(parts);
    }
    steps
}

/// The commands of a line. `input` is the end of the here-document that follows.
fn split(line: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = Step::default();
    let mut words = words(line).into_iter();
    while let Some((word, is_quoted)) = words.next() {
        let mut next = || words.next().map(|(word, _)| word);
        match &*word {
            "|" | "&&" | ";" if !is_quoted => steps.push(std::mem::take(&mut step)),
            ">" if !is_quoted => step.file = next(),
            _ if !is_quoted && word.starts_with("<<") => step.input = Some(word[2..].to_owned()),
            _ if step.words.is_empty() && is_assignment(&word) => step.variables.push(word),
            _ => step.words.push(word),
        }
    }
    steps.push(step);
    steps.retain(|step| *step != Step::default());
    steps
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && is_name(name))
}

/// Words without quotes, and whether they begin with one. A comment ends the line.
fn words(line: &str) -> Vec<(String, bool)> {
    let mut words = Vec::new();
    let mut word: Option<(String, bool)> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_with(|| (String::new(), true));
            }
            (Some(open), _) if c == open => quote = None,
            _ => word.get_or_insert_with(|| (String::new(), false)).0.push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn a_line_is_split_as_the_shell_splits_it() {
    let line = "A=1 curl -s 'http://a/?b&&c' | head   # a comment";
    let words: Vec<_> = split(line).into_iter().map(|step| (step.variables, step.words)).collect();
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(words, [(texts(&["A=1"]), texts(&["curl", "-s", "http://a/?b&&c"])), (Vec::new(), texts(&["head"]))]);
}

#[test]
fn a_console_has_here_documents_and_output() {
    let found = steps("$ cat > a <<'END'\nx: 1\nEND\n$ b \\\n  c\nhello\n", true);
    assert_eq!((found[0].file.as_deref(), found[0].input.as_deref()), (Some("a"), Some("x: 1\n")));
    assert_eq!((found[1].words.join(" "), found[1].output.as_deref()), ("b c".to_owned(), Some("hello\n")));
    assert_eq!(found.len(), 2);
}
