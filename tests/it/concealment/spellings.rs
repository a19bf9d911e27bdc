//! Generated spellings of the paths of secrets.

use std::net::SocketAddr;

use mock::{Handle, SECRET_MARKER, secret_paths};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use proxy::policy::{Choice, Policy, Recursive};

use super::{UNNAMED, built_in, misread};
use crate::support::{Proxy, config, raw, upstream};

/// Text that no account's answer may contain: the beginning of every JWT.
const JWT: &str = "eyJ";

#[test]
fn compat_gives_no_spelling_away() {
    gives_no_spelling_away(built_in("compat"));
}

#[test]
fn compat_without_recursive_reads_gives_no_spelling_away() {
    gives_no_spelling_away(Choice { recursive: Some(Recursive::Refuse), ..built_in("compat") });
}

#[test]
fn strict_gives_no_spelling_away() {
    gives_no_spelling_away(built_in("strict"));
}

fn gives_no_spelling_away(choice: Choice) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let policy = choice.load().expect("built in");
    let (mock, proxy) = runtime.block_on(async {
        let mock = upstream().await;
        mock.enable_legacy();
        for path in UNNAMED {
            mock.remove(path);
        }
        let proxy = Proxy::with(gce_metadata_proxy::config::Config { policy: choice, ..config(mock.addr()) }).await;
        (mock, proxy)
    });
    let mut runner = TestRunner::new(Config { cases: 500, ..Config::default() });
    let result = runner.run(&target(), |target| {
        let problem = runtime.block_on(problem(proxy.addr, &mock, &policy, &target));
        prop_assert!(problem.is_none(), "{}: {}", target, problem.unwrap_or_default());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

async fn problem(addr: SocketAddr, mock: &Handle, policy: &Policy, target: &str) -> Option<String> {
    mock.reset_counters();
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: metadata\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n");
    let came = raw(addr, request).await;
    let text = String::from_utf8_lossy(&came);
    if text.is_empty() || text.contains(SECRET_MARKER) || text.contains(JWT) {
        return Some(text.into_owned());
    }
    let secret = mock.log().iter().map(|seen| seen.path().to_owned()).find(|path| is_secret(path));
    secret.into_iter().chain(misread(mock, policy)).next().map(|target| format!("{target} went upstream"))
}

/// Whether a path names a secret to the most lenient server: one that decodes until nothing changes, resolves dots,
/// ignores case, hyphens, underscores and a final slash, and takes a `;` for the end of a name.
fn is_secret(path: &str) -> bool {
    let read = lenient(path);
    let below =
        ["computemetadata/v1/", "computemetadata/v1beta1/"].into_iter().find_map(|tree| read.strip_prefix(tree));
    let below = match read.strip_prefix("0.1/metadata/") {
        Some(below) => format!("instance/{below}"),
        None => below.unwrap_or_default().to_owned(),
    };
    let is_identity = below.starts_with("instance/serviceaccounts/") && below.split('/').nth(3) == Some("identity");
    is_identity
        || secret_paths()
            .filter(|path| !UNNAMED.contains(path))
            .map(lenient)
            .any(|secret| below == secret || below.strip_prefix(&secret).is_some_and(|rest| rest.starts_with('/')))
}

fn lenient(path: &str) -> String {
    let mut decoded = path.to_owned();
    loop {
        let again = percent_encoding::percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
        if again == decoded {
            break;
        }
        decoded = again;
    }
    let mut names: Vec<String> = Vec::new();
    for name in decoded.replace('\\', "/").split('/') {
        match name.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name.trim().to_lowercase().replace(['-', '_'], "")),
        }
    }
    names.join("/")
}

/// A request target that some server takes for a secret, or for a directory that contains one.
pub(super) fn target() -> impl Strategy<Value = String> {
    (path(), select(vec!["", "http://169.254.169.254", "HTTP://metadata:80", "//", "/.", "/x/.."]), query())
        .prop_map(|(path, before, query)| format!("{before}{path}{query}"))
        .prop_filter("a request line has no blanks", |target| !target.contains(char::is_whitespace))
}

fn path() -> impl Strategy<Value = String> {
    let trees =
        select(vec!["/computeMetadata/v1/", "/computeMetadata/v1/", "/computeMetadata/v1beta1/", "/0.1/meta-data/"]);
    (trees, secret(), any::<u64>(), 0..4_u8).prop_map(|(tree, secret, seed, tricks)| {
        let below = if tree == "/0.1/meta-data/" { secret.trim_start_matches("instance/") } else { &secret };
        let mut spelt = Spelling { seed, tricks };
        spelt.path(&format!("{tree}{below}"))
    })
}

/// A secret, or a directory above it.
fn secret() -> impl Strategy<Value = String> {
    let secrets = secret_paths().filter(|path| !UNNAMED.contains(path)).map(str::to_owned);
    let accounts = ["default", "123456789012-compute@developer.gserviceaccount.com", "-", "*"];
    let identities = accounts.into_iter().map(|account| format!("instance/service-accounts/{account}/identity"));
    let all: Vec<String> = secrets.chain(identities).collect();
    (select(all), 0..4_usize).prop_map(|(path, keep)| match keep {
        0 => path.split_inclusive('/').next().unwrap_or_default().to_owned(),
        1 => path.rsplit_once('/').map_or(path.clone(), |(above, _)| format!("{above}/")),
        _ => path,
    })
}

fn query() -> impl Strategy<Value = String> {
    let spelt = [
        "",
        "",
        "?",
        "?recursive=true",
        "?recursive",
        "?recursive=",
        "?Recursive=true",
        "?RECURSIVE=TRUE",
        "?recursive=1",
        "?%72ecursive=true",
        "?%2572ecursive=true",
        "?recursive%3Dtrue",
        "?alt=text;recursive=true",
        "?;recursive=true",
        "?recursive=true&alt=text",
        "?alt=text&recursive=on",
        "?alt=json",
        "?alt=text",
        "?recursive=false&recursive=true",
        "?recursive=true&recursive=false",
        "?recursive=true&alt=TEXT",
        "?recursive=true&wait_for_change=true&last_etag=0",
        "?recursive=true&wait_for_change=true&timeout_sec=0&alt=text",
        "?x=1&recursive=yes",
        "?re%08ecursive=true",
        "?audience=x",
        "?audience=x&format=full&licenses=TRUE",
        "?recursive=t",
        "?recursive=%00true",
        "#?recursive=true",
        "?recursive=true#",
        "?audience=x#",
        "?recursive=maybe&alt=json",
        "?recursive+=true",
        "?+recursive=true",
    ];
    select(spelt.to_vec()).prop_map(str::to_owned)
}

/// Changes random parts of a path, from a seed, so that a failure shrinks to few changes.
struct Spelling {
    seed: u64,
    /// Approximate number of letters in sixteen that are changed.
    tricks: u8,
}

impl Spelling {
    fn path(&mut self, path: &str) -> String {
        let mut spelt = String::new();
        for letter in path.chars() {
            let changed = self.roll(16) < u64::from(self.tricks);
            match letter {
                '/' if changed && !spelt.is_empty() => spelt.push_str(self.separator()),
                letter if changed && letter != '/' => spelt.push_str(&self.letter(letter)),
                letter => spelt.push(letter),
            }
        }
        if self.tricks > 0 {
            let ends = ["", "", "", "", "/", "//", "/.", "/x/..", ";x", ";", "%00", "%20", "%2F", "%2f..", "/;x", "?"];
            spelt.push_str(self.choose(&ends));
        }
        spelt
    }

    fn separator(&mut self) -> &'static str {
        self.choose(&[
            "//",
            "/./",
            "/x/../",
            "///",
            "%2F",
            "%2f",
            "%252F",
            "\\",
            "%5C",
            "/%2e/",
            "/;x/",
            ";x/",
            "/x/y/../../",
        ])
    }

    fn letter(&mut self, letter: char) -> String {
        let code = u32::from(letter);
        match self.roll(8) {
            0 => letter.to_uppercase().collect(),
            1 => letter.to_lowercase().collect(),
            2 => format!("%{code:02X}"),
            3 => format!("%{code:02x}"),
            4 => format!("%25{code:02x}"),
            // Camel case loses the hyphen; an additional hyphen or underscore is lost too.
            5 if letter == '-' => String::new(),
            6 => format!("_{letter}"),
            _ => format!("-{letter}"),
        }
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        let at = usize::try_from(self.roll(from.len() as u64)).expect("below a length");
        from[at]
    }

    /// Xorshift.
    fn roll(&mut self, below: u64) -> u64 {
        self.seed = self.seed.max(1);
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }
}

/// The oracle must recognise secrets, or nothing is tested.
#[test]
fn the_lenient_reading_finds_secrets() {
    for path in [
        "/computeMetadata/v1/instance/attributes/kube-env",
        "/computeMetadata/v1/instance/attributes/KUBE%252dENV;x/",
        "/computeMetadata/v1beta1/instance/x/../attributes//sshKeys",
        "/0.1/meta-data/attributes/kube-env",
        "/computeMetadata/v1/instance/service-accounts/-x/identity",
        "/computeMetadata/v1/oslogin/users/x",
    ] {
        assert!(is_secret(path), "{path}");
    }
    for path in
        ["/computeMetadata/v1/instance/attributes/", "/computeMetadata/v1/instance/id", "/", "/0.1/meta-data/zone"]
    {
        assert!(!is_secret(path), "{path}");
    }
}
