//! Changes of a policy file, and states in between.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::time::{Instant, sleep};

use super::*;
use crate::policy::BuiltIn;

const HEAD: &str = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nextends: strict\n";

/// A secret that every built-in policy conceals.
const SECRET: &str = "instance/attributes/kube-env";

const HOUR: Duration = Duration::from_secs(3600);

/// A directory that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("metadata-proxy-live-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Replaces the mounted files as the kubelet does: the file is a link into a directory that is itself a link, and
    /// the latter is swapped.
    fn publish(&self, generation: &str, text: &str) {
        let data = self.0.join(generation);
        fs::create_dir_all(&data).expect("a directory");
        fs::write(data.join("policy.yaml"), text).expect("written");
        symlink(generation, self.0.join("..data_tmp")).expect("a link");
        fs::rename(self.0.join("..data_tmp"), self.0.join("..data")).expect("swapped");
    }

    fn policy(&self) -> PathBuf {
        self.0.join("policy.yaml")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn choice(file: &Path) -> Choice {
    Choice { source: Source::File(file.to_owned()), recursive: None }
}

fn version(number: usize) -> String {
    format!("{HEAD}version: '{number}'\n")
}

/// Writes a file as of a time.
fn write(file: &Path, text: &str, modified: SystemTime) {
    fs::write(file, text).expect("written");
    File::options().write(true).open(file).and_then(|file| file.set_modified(modified)).expect("a time");
}

/// A time at which no file is old, however long the test takes.
fn recently() -> SystemTime {
    SystemTime::now() + HOUR
}

fn told(reloaded: &Reloaded<'_>) -> String {
    match reloaded {
        Reloaded::Applied(policy) => format!("{} applied", policy.version()),
        Reloaded::Rejected { in_force, .. } => format!("rejected, {} in force", in_force.version()),
    }
}

/// A policy and checks of its file, without the file.
struct Checked {
    live: LivePolicy,
    changes: Changes,
}

impl Checked {
    fn new(text: &str) -> Self {
        let live = LivePolicy::of(choice(Path::new("p.yaml")), text).expect("a policy");
        let changes = Changes::since(live.loaded);
        Self { live, changes }
    }

    /// Returns what a check that finds this text reports.
    fn check(&mut self, text: &str) -> Vec<String> {
        self.check_found(Ok(text.to_owned()))
    }

    fn check_found(&mut self, found: Result<String, LoadError>) -> Vec<String> {
        let mut reports = Vec::new();
        self.live.check(found, &mut self.changes, |reloaded| reports.push(told(&reloaded)));
        reports
    }
}

fn compat() -> String {
    Source::BuiltIn(BuiltIn::Compat).text().expect("built in")
}

#[test]
fn a_valid_change_is_applied_and_an_invalid_one_rejected() {
    let mount = Folder::new("swapped");
    mount.publish("1", &version(1));
    symlink("..data/policy.yaml", mount.policy()).expect("a link");
    let source = choice(&mount.policy()).source;
    let mut checked = Checked::new(&source.text().expect("a file"));
    let mut check = || (checked.check_found(source.text()), checked.live.current().version().to_owned());
    let unchanged = |version: &str| (Vec::new(), version.to_owned());
    let changed = |report: &str, version: &str| (vec![report.to_owned()], version.to_owned());
    assert_eq!(check(), unchanged("1"));

    mount.publish("2", &version(2));
    assert_eq!(check(), unchanged("1"), "found once");
    assert_eq!(check(), changed("2 applied", "2"));

    mount.publish("3", &format!("{}rulez: []\n", version(3)));
    assert_eq!(check(), unchanged("2"));
    assert_eq!(check(), changed("rejected, 2 in force", "2"), "an invalid file changes nothing");
    assert_eq!(check(), unchanged("2"), "reported once");

    mount.publish("4", &version(2));
    assert_eq!(check(), unchanged("2"));
    assert_eq!(check(), changed("2 applied", "2"));
}

/// The states of a file while it is written: any prefix, then the whole.
#[test]
fn no_prefix_of_a_policy_is_applied_at_the_first_check() {
    let text = compat();
    let mut checked = Checked::new(&version(1));
    let mut opening = 0;
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let prefix = &text[..end];
        checked.changes = Changes::since(checked.live.loaded);
        assert_eq!(checked.check(prefix), [""; 0], "the first {end} bytes");
        assert_eq!(checked.check(&text), [""; 0], "after the first {end} bytes");
        assert!(!checked.live.current().shows(SECRET), "the first {end} bytes");
        let opens = || Choice::default().compile(prefix).is_ok_and(|policy| policy.shows(SECRET));
        opening += usize::from(prefix.ends_with('\n') && opens());
    }
    assert!(opening > 0, "no prefix is a policy that exposes a secret, so this test shows nothing");
    assert_eq!(checked.check(&text), ["3 applied"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_applies_at_the_second_check_that_finds_it() {
    let folder = Folder::new("follow");
    let file = folder.policy();
    write(&file, &version(1), SystemTime::now() - HOUR);
    let live = LivePolicy::load(choice(&file)).await.expect("a policy");
    let reports = std::sync::Mutex::new(Vec::new());
    let taken = || std::mem::take(&mut *reports.lock().expect("no panic"));
    let script = async {
        // Checks are at 0 s, 5 s, 10 s and so on; this is in between.
        sleep(CHECK_INTERVAL / 2).await;
        fs::write(&file, &version(2)[..HEAD.len() + 5]).expect("written");
        sleep(CHECK_INTERVAL).await;
        fs::write(&file, version(2)).expect("written");
        sleep(CHECK_INTERVAL).await;
        assert_eq!((taken(), live.current().version()), (Vec::new(), "1"));
        sleep(CHECK_INTERVAL).await;
        assert_eq!((taken(), live.current().version()), (vec!["2 applied".to_owned()], "2"));

        fs::remove_file(&file).expect("removed");
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        sleep(2 * CHECK_INTERVAL).await;
        assert_eq!(taken(), ["rejected, 2 in force"], "a FIFO does not block the checks");
        sleep(2 * CHECK_INTERVAL).await;
        assert!(taken().is_empty(), "reported once");
    };
    tokio::select! {
        () = live.follow(|reloaded| reports.lock().expect("no panic").push(told(&reloaded))) => unreachable!("it never ends"),
        () = script => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_being_written_is_loaded_once_it_is_whole() {
    let folder = Folder::new("start");
    let (file, text) = (folder.policy(), compat());
    let end = text.find("rules:").expect("it has rules");
    assert!(Choice::default().compile(&text[..end]).is_ok_and(|policy| policy.shows(SECRET)), "it is a policy, too");
    write(&file, &text[..end], recently());
    let finish = async {
        sleep(PAUSE / 2).await;
        write(&file, &text, recently());
    };
    let (live, ()) = tokio::join!(LivePolicy::load(choice(&file)), finish);
    assert!(!live.expect("a policy").current().shows(SECRET));
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_only_for_a_file_that_was_just_written() {
    let folder = Folder::new("age");
    let file = folder.policy();
    for (modified, waited) in [(SystemTime::now() - HOUR, Duration::ZERO), (recently(), PAUSE)] {
        write(&file, &version(1), modified);
        let start = Instant::now();
        LivePolicy::load(choice(&file)).await.expect("a policy");
        // Time is paused, so this is exact but for the timer's resolution.
        assert_eq!(start.elapsed().as_secs(), waited.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_keeps_changing_is_not_loaded() {
    let folder = Folder::new("restless");
    let file = folder.policy();
    let change = async {
        for number in 0.. {
            write(&file, &version(number), recently());
            sleep(PAUSE / 2).await;
        }
    };
    let error = tokio::select! {
        biased;
        () = change => unreachable!("it never ends"),
        loaded = LivePolicy::load(choice(&file)) => loaded.expect_err("it keeps changing").to_string(),
    };
    let expected = format!(
        "policy file {} changes whenever it is read; write the policy to another file, and rename that to this one",
        file.display()
    );
    assert_eq!(error, expected);
}

proptest! {
    /// A file is cut to nothing and written in pieces. A check comes after each piece.
    #[test]
    fn a_policy_written_in_pieces_is_applied_as_a_whole(ends in btree_set(0..compat().len(), 0..12), from_itself: bool) {
        let text = compat();
        let before = if from_itself { text.clone() } else { version(1) };
        let mut checked = Checked::new(&before);
        for end in ends.into_iter().filter(|end| text.is_char_boundary(*end)) {
            prop_assert_eq!(checked.check(&text[..end]), [""; 0], "the first {} bytes", end);
            prop_assert!(!checked.live.current().shows(SECRET));
        }
        prop_assert_eq!(checked.check(&text), [""; 0]);
        let expected = if from_itself { vec![] } else { vec!["3 applied"] };
        prop_assert_eq!(checked.check(&text), expected);
    }

    /// A check may come more than once after a piece, and pieces in any order: what applies was found twice in a row.
    #[test]
    fn what_applies_was_found_by_two_checks_in_a_row(ends in vec(prop_oneof![0..compat().len(), 500..510usize], 0..24)) {
        let text = compat();
        let mut checked = Checked::new(&version(1));
        let mut last = None;
        for end in ends.into_iter().filter(|end| text.is_char_boundary(*end)) {
            let before = checked.live.current().hash().to_owned();
            let reports = checked.check(&text[..end]);
            let is_same = last.replace(end) == Some(end);
            prop_assert!(reports.is_empty() || is_same, "{:?} at the first check", reports);
            prop_assert!(is_same || checked.live.current().hash() == before);
        }
    }
}
