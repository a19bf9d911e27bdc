use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::sync::mpsc;

use super::*;

/// A directory that outlives a process, and ends with this value.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("known-pods-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).expect("it is new");
        Self(dir)
    }

    /// The store of a process that starts here.
    fn store(&self) -> Store {
        Store { dir: self.0.clone(), node: "node-1".parse().expect("a name"), boot: "boot-1".to_owned() }
    }

    fn file(&self) -> PathBuf {
        self.0.join(NAME)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pod(number: u32) -> Pod {
    Pod {
        uid: PodUid::parse(&format!("{number:032x}")).expect("32 digits"),
        namespace: "shop".into(),
        name: format!("checkout-{number}").into(),
        account: "checkout".into(),
        host_network: false,
        ended: false,
        terminating: false,
        created: number.into(),
        addresses: vec!["10.8.0.5".parse().expect("an address"), "fd00::5".parse().expect("an address")],
    }
}

/// The pods known after a restart.
fn restored(store: &Store) -> Pods {
    let pods = Pods::default();
    store.restore(&pods);
    pods
}

fn written(dir: &Dir, known: impl IntoIterator<Item = Pod>) -> BootTime {
    let pods = Pods::default();
    pods.replace(known);
    let heard = pods.last_heard().expect("a list");
    dir.store().write(&pods, heard).expect("it can be written");
    heard
}

#[tokio::test(start_paused = true)]
async fn a_restart_knows_the_pods_and_how_old_the_news_is() {
    let dir = Dir::new();
    let known = pod(1);
    written(&dir, [known.clone(), Pod { terminating: true, ..pod(2) }]);
    sleep(Duration::from_secs(400)).await;
    let pods = restored(&dir.store());
    assert_eq!(pods.get(known.uid).as_deref(), Some(&known));
    assert!(pods.get(pod(2).uid).is_some_and(|pod| pod.terminating));
    assert_eq!(pods.age().expect("known").as_secs(), 400, "the silence goes on");
    let mode = fs::metadata(dir.file()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn after_a_start_of_the_node_its_pods_have_no_addresses_yet() {
    let dir = Dir::new();
    written(&dir, [pod(1)]);
    for boot in ["boot-2", ""] {
        let pods = restored(&Store { boot: boot.to_owned(), ..dir.store() });
        let known = pods.get(pod(1).uid).expect("its UID is its own for ever");
        assert_eq!((&*known.account, known.addresses.len()), ("checkout", 0), "{boot:?}");
        assert_eq!(pods.last_heard(), Some(BootTime::from_nanos(0)), "not since the node started");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_list_replaces_what_was_restored_and_not_the_reverse() {
    let dir = Dir::new();
    written(&dir, [pod(1)]);
    let pods = restored(&dir.store());
    pods.replace([pod(2)]);
    dir.store().restore(&pods);
    assert_eq!(pods.all().iter().map(|pod| pod.uid).collect::<Vec<_>>(), [pod(2).uid]);
}

#[tokio::test(start_paused = true)]
async fn pods_without_an_identity_and_what_is_too_much_are_left_out() {
    let dir = Dir::new();
    let most = u32::try_from(MAX_PODS).expect("few");
    let others = [
        Pod { ended: true, ..pod(9001) },
        Pod { host_network: true, ..pod(9002) },
        Pod { account: "".into(), ..pod(9003) },
    ];
    written(&dir, (0..2 * most).map(pod).chain(others));
    let pods = restored(&dir.store());
    assert_eq!(pods.count(), MAX_PODS);
    assert!((0..most).all(|number| pods.get(pod(number).uid).is_some()), "those that were there first");
    let longest = |number| {
        let (name, addr) = ("n".repeat(253), "fd00:1111:2222:3333:4444:5555:6666:7777".parse().expect("an address"));
        let (namespace, account) = (Arc::from(&name[..63]), name.as_str().into());
        Pod { namespace, account, name: name.as_str().into(), addresses: vec![addr; 4], ..pod(number) }
    };
    written(&dir, (0..most).map(longest));
    assert_eq!(restored(&dir.store()).count(), MAX_PODS, "the longest names fit");
}

#[tokio::test(start_paused = true)]
async fn a_file_of_no_use_is_a_cold_start() {
    let dir = Dir::new();
    written(&dir, [pod(1)]);
    let good = fs::read_to_string(dir.file()).expect("it was written");
    assert_eq!(restored(&dir.store()).count(), 1);
    let later = (BootTime::now() + Duration::from_secs(1)).as_nanos();
    let heard = good.split("\"heard\":").nth(1).and_then(|rest| rest.split(',').next()).expect("a number");
    for bad in [
        String::new(),
        "\0\u{1}garbage".to_owned(),
        good[..good.len() / 2].to_owned(),
        format!("{good}{good}"),
        good.replace("\"version\":1", "\"version\":2"),
        good.replace("\"version\":1", "\"version\":1,\"more\":1"),
        good.replace("node-1", "node-2"),
        good.replace(heard, &later.to_string()),
        good.replace("00000000-", "0000000g-"),
        good.replace("\"checkout\"", "\"\""),
        format!("{good}{}", " ".repeat(1 << 20)),
    ] {
        fs::write(dir.file(), &bad).expect("it is there");
        let pods = restored(&dir.store());
        assert_eq!((pods.count(), pods.age()), (0, None), "{}", &bad[..bad.len().min(200)]);
    }
    fs::write(dir.file(), good).expect("it is there");
    assert_eq!(restored(&dir.store()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_others_may_write_is_not_read() {
    let dir = Dir::new();
    written(&dir, [pod(1)]);
    fs::set_permissions(dir.file(), PermissionsExt::from_mode(0o620)).expect("it is its own");
    assert_eq!(restored(&dir.store()).age(), None);
    fs::set_permissions(dir.file(), PermissionsExt::from_mode(0o600)).expect("it is its own");
    let elsewhere = dir.0.join("elsewhere");
    fs::rename(dir.file(), &elsewhere).expect("it is there");
    symlink(&elsewhere, dir.file()).expect("it is free");
    assert_eq!(restored(&dir.store()).age(), None, "a link is followed");
    fs::remove_file(dir.file()).expect("it is there");
    fs::create_dir(dir.file()).expect("it is free");
    assert_eq!(restored(&dir.store()).age(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_write_does_not_stop_the_next() {
    let dir = Dir::new();
    fs::write(dir.file().with_extension(NEXT), "half of a fi").expect("it is free");
    written(&dir, [pod(1)]);
    assert_eq!(restored(&dir.store()).count(), 1);
}

#[tokio::test]
async fn changes_are_written_within_seconds() {
    let dir = Dir::new();
    let pods = Arc::<Pods>::default();
    let keeping = tokio::spawn(keep(dir.store(), Arc::clone(&pods), |_| ()));
    pods.replace([pod(1), pod(2)]);
    pods.remove(pod(1).uid);
    let is_written = async {
        while restored(&dir.store()).all().iter().map(|pod| pod.uid).ne([pod(2).uid]) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), is_written).await.expect("it is written");
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_failure_lasts_until_the_next_good_write() {
    let dir = Dir::new();
    let store = Store { dir: dir.0.join("later"), ..dir.store() };
    let pods = Arc::<Pods>::default();
    pods.replace([pod(1)]);
    let (tell, mut told) = mpsc::unbounded_channel();
    let on = move |error: Option<&io::Error>| tell.send(error.map(io::Error::kind)).expect("the test waits");
    let keeping = tokio::spawn(keep(store.clone(), Arc::clone(&pods), on));
    assert_eq!(told.recv().await, Some(Some(io::ErrorKind::NotFound)));
    fs::create_dir(&store.dir).expect("it is new");
    let is_good = async { while told.recv().await.expect("it goes on").is_some() {} };
    timeout(2 * INTERVALS.1, is_good).await.expect("it is told of the good write");
    assert_eq!(restored(&store).count(), 1);
    keeping.abort();
}
