//! One rule per program: whether a command of the documentation would work, without a cluster and without the network.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use gce_metadata_proxy::cli::{self, Command, Stop};

use crate::demo::Demo;
use crate::shell::Step;
use crate::{files, root};

/// Flags of the feature `workload-identity`.
const IDENTITY_FLAGS: [&str; 6] =
    ["--workload-identity", "--node-name", "--kubeconfig", "--host-proc", "--attest", "--passthrough"];

/// Programs that are not checked further: what they do is up to the reader's machine.
const UNCHECKED: [&str; 1] = ["nft"];

/// Scripts of the repository, and their arguments.
const SCRIPTS: [(&str, &[&str]); 3] =
    [(".ci/run", &[]), ("deploy/tests/run", &["manifests", "image", "node"]), ("tests/run", &["--list"])];

/// Crates with a program that the documentation installs.
const INSTALLED: [&str; 3] = ["cargo-deny", "cargo-fuzz", "oha"];

/// Flags of cargo that take a value, and others.
const CARGO_VALUES: [&str; 3] = ["--test", "--bench", "--features"];
const CARGO_FLAGS: [&str; 9] =
    ["--release", "--lib", "--bins", "--all-targets", "--all-features", "--locked", "--no-deps", "--check", "--list"];

/// Flags of curl that take a value.
const CURL_VALUES: [&str; 2] = ["-H", "-X"];

type Checked = Result<(), String>;

/// The rules, with the files that earlier commands of a page wrote and the demo that one started.
pub(crate) struct Rules {
    written: Vec<(String, PathBuf)>,
    demo: Option<Demo>,
    sources: String,
    values: serde_json::Value,
}

fn fail<T>(mistake: impl Into<String>) -> Result<T, String> {
    Err(mistake.into())
}

fn check(is_right: bool, mistake: impl Into<String>) -> Checked {
    if is_right { Ok(()) } else { fail(mistake) }
}

fn text(path: &str) -> String {
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
        let values = text("deploy/helm/gce-metadata-proxy/values.yaml");
        Self {
            written: Vec::new(),
            demo: None,
            sources: sources.collect(),
            values: serde_saphyr::from_str(&values).expect("the chart's values are YAML"),
        }
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
            "kubectl" => Self::kubectl(args).map(|()| None),
            "helm" => self.helm(args).map(|()| None),
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
        // These flags are in builds with the features `otlp` and `workload-identity` only.
        let is_known = |arg: &&String| {
            (cfg!(feature = "otlp") || !arg.starts_with("--otlp-"))
                && (cfg!(feature = "workload-identity") || !IDENTITY_FLAGS.iter().any(|flag| arg.starts_with(flag)))
        };
        let is_doctor = args.iter().any(|arg| arg == "doctor");
        if is_doctor && !cfg!(feature = "workload-identity") {
            return Ok(None);
        }
        // The manifests have it in the environment.
        let node = is_doctor.then(|| OsString::from("--node-name=node-1"));
        let args = args.iter().filter(is_known).map(file).chain(node);
        match cli::parse(std::iter::once(OsString::from("gce-metadata-proxy")).chain(args)) {
            Ok(Command::Ask(question)) if !is_mention => question.answer().map(Some).map_err(|error| error.to_string()),
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
            } else if word.starts_with('-') {
                check(CARGO_FLAGS.contains(&&**word), format!("unknown flag {word}"))?;
            } else {
                rest.push(word);
            }
        }
        match (&**subcommand, &rest[..]) {
            ("run", []) => return self.run(passed_on, step),
            ("build" | "test" | "bench" | "clippy" | "fmt" | "doc" | "package", []) => {}
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
        if args == ["demo"] && step.output.is_some() {
            let demo = Demo::start();
            let printed = demo.tour.clone();
            self.demo = Some(demo);
            return Ok(Some(printed));
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

    fn kubectl(args: &[String]) -> Checked {
        let manifests =
            || files(&root().join("deploy"), ".yaml").into_iter().filter_map(|path| fs::read_to_string(path).ok());
        let is_named = |name: &str| manifests().any(|text| text.contains(&format!("name: {name}\n")));
        let (own, passed_on) = match args.iter().position(|arg| arg == "--") {
            Some(at) => (&args[..at], &args[at + 1..]),
            None => (args, &args[..0]),
        };
        let mut words = own.iter();
        let mut subcommand = "";
        while let Some(word) = words.next() {
            match &**word {
                "-k" => check_kustomization(words.next())?,
                "-n" | "--namespace" => check(words.next().is_some_and(|name| name == "kube-system"), "namespace")?,
                "--output" | "--selector" => drop(words.next()),
                "-c" => check(words.next().is_some_and(|name| is_named(name)), "no such container")?,
                "--rm" | "-i" | "--restart=Never" => {}
                word if word.starts_with("--image=REGISTRY/") => check_image(&word["--image=REGISTRY/".len()..])?,
                word if word.starts_with("daemonset/") => {
                    check(is_named(&word["daemonset/".len()..]), "no such DaemonSet")?;
                }
                word if word.starts_with('-') => return fail(format!("unknown flag {word}")),
                word if subcommand.is_empty() => subcommand = word,
                _ if subcommand == "kustomize" => check_kustomization(Some(word))?,
                _ => {}
            }
        }
        check(
            ["apply", "describe", "exec", "get", "kustomize", "port-forward", "rollout", "run"].contains(&subcommand),
            "unknown subcommand",
        )?;
        let ours = match passed_on.split_first() {
            Some((program, args)) if program == "/gce-metadata-proxy" => args,
            _ => passed_on,
        };
        if ours.is_empty() { Ok(()) } else { Self::new().ours(ours, true).map(drop) }
    }

    fn helm(&self, args: &[String]) -> Checked {
        let [subcommand, release, chart, flags @ ..] = args else { return fail("no chart") };
        check(
            ["install", "upgrade"].contains(&&**subcommand) && release == "gce-metadata-proxy",
            "unknown subcommand",
        )?;
        check(root().join(chart).join("Chart.yaml").exists(), format!("no chart {chart}"))?;
        for pair in flags.chunks(2) {
            let [flag, value] = pair else { return fail("a value is missing") };
            match &**flag {
                "--namespace" | "-n" => check(value == "kube-system", "namespace")?,
                "--values" => check(root().join(value).exists(), format!("no file {value}"))?,
                "--set" => value.split(',').try_for_each(|setting| self.helm_value(setting))?,
                _ => return fail(format!("unknown flag {flag}")),
            }
        }
        Ok(())
    }

    fn helm_value(&self, setting: &str) -> Checked {
        let name = setting.split('=').next().unwrap_or_default();
        let pointer = format!("/{}", name.replace('.', "/"));
        check(self.values.pointer(&pointer).is_some(), format!("the chart has no value {name}"))
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

fn check_kustomization(dir: Option<&String>) -> Checked {
    let Some(dir) = dir else { return fail("-k needs a directory") };
    check(root().join(dir).join("kustomization.yaml").exists(), format!("no kustomization in {dir}"))
}

/// An image of this release.
fn check_image(image: &str) -> Checked {
    let version = env!("CARGO_PKG_VERSION");
    let images = ["gce-metadata-proxy", "gce-metadata-proxy-redirect"].map(|name| format!("{name}:{version}"));
    check(images.contains(&image.to_owned()), format!("the images are {images:?}"))
}
