//! One rule per program: whether a command of the documentation would work, without a cluster and without the network.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use gce_metadata_proxy::cli::{self, Command, Stop};

use crate::cluster::{Cluster, Inside};
use crate::demo::Demo;
use crate::shell::Step;
use crate::{files, root};

/// Programs that are not checked further: what they do is up to the reader's machine, or to Google.
const UNCHECKED: [&str; 9] = ["cosign", "crictl", "gcloud", "kind", "nft", "sed", "sha256sum", "systemctl", "tar"];

/// Runs the command behind it on the node of `deploy/tests/run node`.
const ENTER: &str = "deploy/tests/node/enter";

/// Scripts of the repository, and their arguments.
const SCRIPTS: [(&str, &[&str]); 11] = [
    (".ci/dependencies", &[]),
    (".ci/minimum-rust", &[]),
    (".ci/run", &[]),
    (".ci/scan", &[]),
    ("deploy/image/images.py", &["--architecture", "amd64", "--demo"]),
    ("deploy/image/lock-debian", &["--check"]),
    ("deploy/image/notices", &["--check"]),
    ("deploy/release/release.py", &[]),
    ("deploy/release/verify", &["DIR", "COMMIT", "--key", "PUBLIC.pem"]),
    ("deploy/tests/run", &["manifests", "image", "emulated", "release", "node"]),
    ("tests/run", &["--install", "--list"]),
];

/// Crates with a program that the documentation installs.
const INSTALLED: [&str; 3] = ["cargo-deny", "cargo-fuzz", "oha"];

/// Flags of cargo that take a value which is checked, those that take any, and others.
const CARGO_VALUES: [&str; 3] = ["--test", "--bench", "--features"];
const CARGO_ANY_VALUES: [&str; 4] = ["--edges", "--format", "--package", "--target"];
const CARGO_FLAGS: [&str; 9] =
    ["--release", "--lib", "--bins", "--all-targets", "--all-features", "--locked", "--no-deps", "--check", "--list"];

/// Flags of curl that take a value.
const CURL_VALUES: [&str; 2] = ["-H", "-X"];

pub(crate) type Checked = Result<(), String>;

/// The rules, with the files that earlier commands of a page wrote and the demo that one started.
pub(crate) struct Rules {
    written: Vec<(String, PathBuf)>,
    demo: Option<Demo>,
    sources: String,
    cluster: Cluster,
}

pub(crate) fn fail<T>(mistake: impl Into<String>) -> Result<T, String> {
    Err(mistake.into())
}

pub(crate) fn check(is_right: bool, mistake: impl Into<String>) -> Checked {
    if is_right { Ok(()) } else { fail(mistake) }
}

/// Times, and how long a token lives, differ from run to run.
pub(crate) fn without_numbers(text: &str) -> String {
    let pieces = text.split(|c: char| c.is_ascii_digit());
    pieces.filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join("N")
}

pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

impl Rules {
    pub(crate) fn new() -> Self {
        // Without these tests, which name what does not exist.
        let is_other = |path: &PathBuf| !path.starts_with(root().join("tests/docs"));
        let sources = ["src", "tests", "benches"].into_iter().flat_map(|dir| files(&root().join(dir), ".rs"));
        let sources = sources.filter(is_other);
        let sources =
            sources.filter_map(|path| Some(format!("{}\n{}", path.display(), fs::read_to_string(&path).ok()?)));
        Self { written: Vec::new(), demo: None, sources: sources.collect(), cluster: Cluster::new() }
    }

    /// After an installation, which has made an overlay of one's own.
    pub(crate) fn installed() -> Self {
        let mut rules = Self::new();
        let copy = ["-rn", "deploy/overlays/self-managed/.", "deploy/overlays/mine"].map(str::to_owned);
        rules.cluster.copy(&copy).expect("an overlay");
        rules
    }

    pub(crate) fn check(&mut self, step: &Step) -> Checked {
        for variable in &step.variables {
            let name = variable.split('=').next().unwrap_or_default();
            check(self.sources.contains(name), format!("nothing reads the variable {name}"))?;
        }
        let Some((program, args)) = step.words.split_first() else { return fail("no command") };
        let is_ours = program.rsplit('/').next() == Some("gce-metadata-proxy");
        let printed = match &**program {
            "cargo" => self.cargo(args, step),
            "curl" => self.curl(args, step),
            "kubectl" => self.kubectl(args, step).map(|()| None),
            "helm" => self.cluster.helm(args, step.is_mention).map(|()| None),
            "skopeo" => Cluster::skopeo(args, step.is_mention).map(|()| None),
            "cp" => self.cluster.copy(args).map(|()| None),
            "$EDITOR" => self.cluster.edit(args).map(|()| None),
            ENTER => check(root().join(ENTER).exists(), "no such script").map(|()| None),
            "cat" => self.write(step).map(|()| None),
            _ if is_ours => self.ours(args, step.is_mention),
            script if SCRIPTS.iter().any(|(name, _)| *name == script) => Self::script(script, args).map(|()| None),
            program if UNCHECKED.contains(&program) => Ok(None),
            _ => fail("no rule checks this program; see tests/docs/rules.rs"),
        }?;
        match (&step.output, printed) {
            (None, _) => Ok(()),
            (Some(_), None) => fail("no rule compares the output of this command"),
            (Some(shown), Some(printed)) => {
                check(shown.trim_end() == printed.trim_end(), format!("it prints\n{printed}"))
            }
        }
    }

    /// `cat > FILE <<'END'` writes a file that later commands use.
    fn write(&mut self, step: &Step) -> Checked {
        let (Some(file), Some(input)) = (&step.file, &step.input) else { return fail("only `cat > FILE <<'END'`") };
        let name = format!("docs-{}-{}-{file}", std::process::id(), self.written.len());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, input).map_err(|error| error.to_string())?;
        self.written.push((file.clone(), path));
        Ok(())
    }

    /// Parses a command line of the proxy; `explain` and `policy` are run.
    fn ours(&self, args: &[String], is_mention: bool) -> Result<Option<String>, String> {
        let file = |arg: &String| {
            let written = self.written.iter().rev().find(|(name, _)| name == arg);
            written.map_or_else(|| OsString::from(arg), |(_, path)| path.into())
        };
        let is_doctor = args.iter().any(|arg| arg == "doctor");
        // The manifests have it in the environment.
        let node = is_doctor.then(|| OsString::from("--node-name=node-1"));
        let args = args.iter().map(file).chain(node);
        match cli::parse(std::iter::once(OsString::from("gce-metadata-proxy")).chain(args)) {
            Ok(Command::Ask { question, .. }) if !is_mention => {
                question.answer().map(|answer| Some(answer.text)).map_err(|error| error.to_string())
            }
            Ok(_) | Err(Stop::Shown(_)) => Ok(None),
            Err(Stop::Usage(mistake)) => Err(mistake),
        }
    }

    fn cargo(&mut self, args: &[String], step: &Step) -> Result<Option<String>, String> {
        let Some((subcommand, args)) = args.split_first() else { return fail("no subcommand") };
        let (own, passed_on) = match args.iter().position(|arg| arg == "--") {
            Some(at) => (&args[..at], &args[at + 1..]),
            None => (args, &args[..0]),
        };
        let mut words = own.iter();
        let mut rest = Vec::new();
        while let Some(word) = words.next() {
            if CARGO_VALUES.contains(&&**word) {
                Self::cargo_value(word, words.next().ok_or("a value is missing")?)?;
            } else if CARGO_ANY_VALUES.contains(&&**word) {
                words.next();
            } else if word.starts_with('-') {
                check(CARGO_FLAGS.contains(&&**word), format!("unknown flag {word}"))?;
            } else {
                rest.push(word);
            }
        }
        match (&**subcommand, &rest[..]) {
            ("run", []) => return self.run(passed_on, step),
            ("build" | "test" | "bench" | "clippy" | "fmt" | "doc" | "package" | "tree", []) => {}
            ("test", [name]) => check(self.sources.contains(&***name), format!("no test is named {name}"))?,
            ("deny", [what]) => check(*what == "check", "unknown subcommand")?,
            ("install", [name]) => check(INSTALLED.contains(&&***name), format!("{name} is not known"))?,
            _ => return fail("no rule checks this subcommand"),
        }
        Ok(None)
    }

    fn cargo_value(flag: &str, value: &str) -> Checked {
        let manifest = text("Cargo.toml");
        let exists = |path: String| root().join(path).exists();
        match flag {
            "--test" => check(
                exists(format!("tests/{value}.rs"))
                    || exists(format!("tests/{value}/main.rs"))
                    || manifest.contains(&format!("[[test]]\nname = \"{value}\"\n")),
                format!("no test target {value}"),
            ),
            "--bench" => check(
                value == "NAME" || manifest.contains(&format!("[[bench]]\nname = \"{value}\"\n")),
                format!("no bench {value}"),
            ),
            _ => value.split(',').try_for_each(|feature| {
                check(manifest.contains(&format!("\n{feature} = [")), format!("no feature {feature}"))
            }),
        }
    }

    /// `cargo run`: the demo is started if its output is shown.
    fn run(&mut self, args: &[String], step: &Step) -> Result<Option<String>, String> {
        let has_mock = step.words.iter().any(|word| word == "mock" || word == "--all-features");
        let needs_mock = args.iter().any(|arg| arg == "demo" || arg == "mock");
        check(has_mock || !needs_mock, "needs `--features mock`")?;
        self.ours(args, true)?;
        if let (true, Some(shown)) = (args.first().is_some_and(|arg| arg == "demo"), &step.output) {
            let demo = Demo::start(args);
            let printed = demo.tour.clone();
            self.demo = Some(demo);
            let differs_only_in_numbers = without_numbers(shown) == without_numbers(&printed);
            return Ok(Some(if differs_only_in_numbers { shown.clone() } else { printed }));
        }
        self.ours(args, step.is_mention)
    }

    fn curl(&self, args: &[String], step: &Step) -> Result<Option<String>, String> {
        let (mut headers, mut urls) = (Vec::new(), Vec::new());
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match &**word {
                "-H" => headers.extend(words.next()),
                flag if CURL_VALUES.contains(&flag) => drop(words.next()),
                flag if flag.starts_with('-') => check(["-s", "-S", "-i", "-sS"].contains(&flag), "unknown flag")?,
                _ => urls.push(word),
            }
        }
        let [url] = urls[..] else { return fail("not exactly one URL") };
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        if matches!(uri.port_u16(), Some(989 | 8989)) {
            // The only source that has a page's path as a whole literal.
            let is_page = text("src/admin/service.rs").contains(&format!("\"{}\"", uri.path()));
            check(is_page, format!("the admin listener has no page {}", uri.path()))?;
        } else {
            check(
                headers.iter().any(|header| **header == "Metadata-Flavor: Google"),
                "needs `Metadata-Flavor: Google`",
            )?;
            let explained = self.ours(&["explain".to_owned(), url.clone()], false)?.unwrap_or_default();
            check(explained.contains("\njudged as "), explained)?;
        }
        match (&step.output, &self.demo) {
            (Some(_), Some(demo)) => demo.get(&uri).map(Some),
            _ => Ok(None),
        }
    }

    fn kubectl(&mut self, args: &[String], step: &Step) -> Checked {
        match self.cluster.kubectl(args, step.is_mention)? {
            Inside::Nothing => Ok(()),
            Inside::Ours(args) => self.ours(&args, true).map(drop),
            Inside::Curl(args) => self.curl(&args, step).map(drop),
        }
    }

    fn script(name: &str, args: &[String]) -> Checked {
        let known = SCRIPTS.iter().find(|(script, _)| *script == name).map_or(&[][..], |(_, args)| args);
        check(args.iter().all(|arg| known.contains(&&**arg)), "unknown argument")?;
        check(root().join(name).exists(), "no such script")
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for (_, path) in &self.written {
            let _ = fs::remove_file(path);
        }
    }
}
