//! Commands that bring the proxy into a cluster: whether they name what is there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::rules::{Checked, check, fail, text};
use crate::{files, root};

/// Subcommands of kubectl that the documentation has.
const KUBECTL: [&str; 19] = [
    "annotate",
    "apply",
    "cordon",
    "create",
    "debug",
    "delete",
    "describe",
    "edit",
    "exec",
    "get",
    "kustomize",
    "label",
    "logs",
    "patch",
    "port-forward",
    "replace",
    "rollout",
    "run",
    "taint",
];

/// Flags of kubectl without a value, and flags whose value can be anything.
const KUBECTL_SWITCHES: [&str; 6] = ["-A", "--rm", "-i", "-it", "--force", "--previous"];
const KUBECTL_VALUES: [&str; 8] =
    ["--dry-run", "--field-selector", "-o", "--output", "--profile", "--raw", "--restart", "--selector"];

/// Likewise of helm.
const HELM_SWITCHES: [&str; 2] = ["--install", "--reset-then-reuse-values"];
const HELM_VALUES: [&str; 2] = ["-o", "--kube-version"];

const HELM: [&str; 7] = ["get", "install", "pull", "rollback", "template", "uninstall", "upgrade"];

const RELEASE: &str = "gce-metadata-proxy";
const CHART: &str = "deploy/helm/gce-metadata-proxy";
const NAMESPACE: &str = "kube-system";

/// What a command runs in a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Inside {
    #[default]
    Nothing,
    /// The proxy's binary.
    Ours(Vec<String>),
    Curl(Vec<String>),
}

/// What the commands of a page have done so far.
pub(crate) struct Cluster {
    /// Copies of directories, and the originals.
    copies: Vec<(PathBuf, PathBuf)>,
    namespaces: Vec<String>,
    /// The values of the chart.
    values: serde_json::Value,
}

/// A flag and its value, behind an equals sign or in the next word.
struct Words<'a> {
    words: std::slice::Iter<'a, String>,
    value: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn of(words: &'a [String]) -> Self {
        Self { words: words.iter(), value: None }
    }

    /// The next word. A flag is without its value.
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.next()?;
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with('-') => (flag, Some(value)),
            _ => (&**word, None),
        };
        self.value = value;
        Some(flag)
    }

    /// The value of that flag.
    fn value(&mut self) -> Result<&'a str, String> {
        match self.value.take() {
            Some(value) => Ok(value),
            None => self.words.next().map(|word| &**word).ok_or_else(|| "a value is missing".to_owned()),
        }
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let values = text(&format!("{CHART}/values.yaml"));
        Self {
            copies: Vec::new(),
            namespaces: vec![NAMESPACE.to_owned()],
            values: serde_saphyr::from_str(&values).expect("the chart's values are YAML"),
        }
    }

    /// Where a file or directory is in the repository, if it is not a copy.
    fn original(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let of_copy = |(copy, original): &(PathBuf, PathBuf)| Some(original.join(path.strip_prefix(copy).ok()?));
        // The last copy counts.
        self.copies.iter().rev().find_map(of_copy).unwrap_or_else(|| root().join(path))
    }

    /// `cp -rn FROM/. TO`. A second time, it neither copies into the copy nor undoes what was edited there.
    pub(crate) fn copy(&mut self, args: &[String]) -> Checked {
        let ["-rn", from, to] = args.iter().map(|arg| &**arg).collect::<Vec<_>>()[..] else {
            return fail("only `cp -rn FROM/. TO`");
        };
        let from = from.strip_suffix("/.").ok_or("only `cp -rn FROM/. TO`, which may be run twice")?;
        check(self.original(from).exists(), format!("there is no {from}"))?;
        self.copies.push((PathBuf::from(to), self.original(from)));
        Ok(())
    }

    /// `$EDITOR FILE...`
    pub(crate) fn edit(&self, args: &[String]) -> Checked {
        args.iter().try_for_each(|file| check(self.original(file).is_file(), format!("there is no {file}")))
    }

    /// `skopeo copy [--all] FROM TO`, from an image that was built to a registry or a file. A mention may lack both.
    pub(crate) fn skopeo(args: &[String], is_mention: bool) -> Checked {
        let args: Vec<_> = args.iter().map(|arg| &**arg).filter(|arg| *arg != "--all").collect();
        match args[..] {
            ["copy"] if is_mention => Ok(()),
            ["copy", from, to] => {
                let from = from.strip_prefix("oci:target/images/").ok_or("not from an image that was built")?;
                check_image(from)?;
                match to.strip_prefix("docker://") {
                    Some(image) => check_image(image),
                    None => check(to.starts_with("docker-archive:"), "neither to a registry nor to a file"),
                }
            }
            _ => fail("only `skopeo copy FROM TO`"),
        }
    }

    /// A mention may lack arguments.
    pub(crate) fn kubectl(&mut self, args: &[String], is_mention: bool) -> Result<Inside, String> {
        let manifests =
            || files(&root().join("deploy"), ".yaml").into_iter().filter_map(|path| fs::read_to_string(path).ok());
        let is_named = |name: &str| manifests().any(|text| text.contains(&format!("name: {name}\n")));
        let (own, passed_on) = match args.iter().position(|arg| arg == "--") {
            Some(at) => (&args[..at], &args[at + 1..]),
            None => (args, &args[..0]),
        };
        let mut words = Words::of(own);
        let mut named = Vec::new();
        let mut is_ours = true;
        while let Some(word) = words.next() {
            match word {
                "-k" | "-f" | "--selector" if is_mention && words.words.len() == 0 => {}
                "-k" => self.kustomization(words.value()?)?,
                "-f" if named == ["logs"] => {}
                "-f" => {
                    let file = words.value()?;
                    check(file == "-" || self.original(file).is_file(), format!("there is no {file}"))?;
                }
                "-n" | "--namespace" => self.namespace(words.value()?)?,
                "-c" => check(is_named(words.value()?), "no such container")?,
                "--image" => is_ours = is_ours_or_curl(words.value()?)?,
                "--overrides" | "-p" => {
                    let object = words.value()?;
                    serde_json::from_str::<serde_json::Value>(object).map_err(|error| format!("{object}: {error}"))?;
                }
                flag if KUBECTL_SWITCHES.contains(&flag) => {}
                flag if KUBECTL_VALUES.contains(&flag) => drop(words.value()?),
                flag if flag.starts_with('-') => return fail(format!("unknown flag {flag}")),
                word => named.push(word),
            }
        }
        match &named[..] {
            [] => return fail("no subcommand"),
            ["kustomize", directory] => self.kustomization(directory)?,
            ["create", "namespace", name] => self.namespaces.push((*name).to_owned()),
            [subcommand, ..] => check(KUBECTL.contains(subcommand), "unknown subcommand")?,
        }
        check(!named.starts_with(&["rollout", "pause"]), "a DaemonSet cannot be paused, and there is no Deployment")?;
        for word in &named {
            if let Some((kind @ ("daemonset" | "job"), name)) = word.split_once('/') {
                check(is_named(name), format!("no {kind} {name}"))?;
            }
            // Cilium's container.
            is_ours &= *word != "ds/cilium";
        }
        Ok(match passed_on.split_first() {
            Some((program, args)) if program == "/gce-metadata-proxy" => Inside::Ours(args.to_vec()),
            Some(_) if is_ours => Inside::Ours(passed_on.to_vec()),
            Some((program, _)) if program.starts_with('-') => Inside::Curl(passed_on.to_vec()),
            _ => Inside::Nothing,
        })
    }

    fn namespace(&self, name: &str) -> Checked {
        check(self.namespaces.iter().any(|known| known == name), format!("nothing has made the namespace {name}"))
    }

    fn kustomization(&self, directory: &str) -> Checked {
        check(self.original(directory).join("kustomization.yaml").exists(), format!("no kustomization in {directory}"))
    }

    /// A mention may be of a subcommand alone.
    pub(crate) fn helm(&self, args: &[String], is_mention: bool) -> Checked {
        let mut words = Words::of(args);
        let mut named = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "--namespace" | "-n" => self.namespace(words.value()?)?,
                "--values" => {
                    let file = words.value()?;
                    check(file == "-" || self.original(file).is_file(), format!("no file {file}"))?;
                }
                "--set" => words.value()?.split(',').try_for_each(|setting| self.helm_value(setting))?,
                "--version" => check(words.value()? == env!("CARGO_PKG_VERSION"), "not this version")?,
                "--show-only" => {
                    let template = words.value()?;
                    check(self.original(CHART).join(template).is_file(), format!("no template {template}"))?;
                }
                flag if HELM_SWITCHES.contains(&flag) => {}
                flag if HELM_VALUES.contains(&flag) => drop(words.value()?),
                flag if flag.starts_with('-') => return fail(format!("unknown flag {flag}")),
                word => named.push(word),
            }
        }
        match named[..] {
            [subcommand] if is_mention => check(HELM.contains(&subcommand), "unknown subcommand"),
            ["get", "values", RELEASE]
            | ["rollback" | "uninstall", RELEASE]
            | ["pull", "oci://REGISTRY/charts/gce-metadata-proxy"] => Ok(()),
            ["install" | "upgrade" | "template", RELEASE, chart] => {
                check(self.original(chart).join("Chart.yaml").exists(), format!("no chart {chart}"))
            }
            _ => fail("unknown subcommand, or no release or chart"),
        }
    }

    fn helm_value(&self, setting: &str) -> Checked {
        let name = setting.split('=').next().unwrap_or_default();
        let pointer = format!("/{}", name.replace('.', "/"));
        check(self.values.pointer(&pointer).is_some(), format!("the chart has no value {name}"))
    }
}

/// Whether the image is one of this release, instead of curl's.
fn is_ours_or_curl(image: &str) -> Result<bool, String> {
    if image == "curlimages/curl" {
        return Ok(false);
    }
    check_image(image).map(|()| true)
}

/// An image of this release.
fn check_image(image: &str) -> Checked {
    let version = env!("CARGO_PKG_VERSION");
    let images = ["", "-redirect", "-demo"].map(|name| format!("gce-metadata-proxy{name}:{version}"));
    // Without a registry it is one that was loaded into the nodes.
    let name = image.strip_prefix("REGISTRY/").unwrap_or(image);
    check(images.iter().any(|image| image == name), format!("the images are {images:?}"))
}
