//! How a large response is written to clients that read and to clients that do not.

use std::future::poll_fn;
use std::io::{IoSlice, Read};
use std::net::{IpAddr, TcpStream as Client};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::memory::MAX_LARGE_WRITES;

const HEAD_BYTES: usize = 300;
const RESPONSE_BYTES: usize = 2 << 20;

fn pod(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

/// A connection of a client that reads nothing on its own, as the proxy serves it.
async fn connect(large_writes: &Arc<LargeWrites>, client: IpAddr) -> (Watched<TcpStream>, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let reader = TcpSocket::new_v4().expect("a socket");
    reader.set_recv_buffer_size(64 * 1024).expect("an option");
    let reader = reader.connect(listener.local_addr().expect("bound")).await.expect("it listens");
    let (server, _) = listener.accept().await.expect("a client");
    SockRef::from(&server).set_send_buffer_size(4096).expect("an option");
    let activity = Arc::new(Activity::new());
    let io = Cuttable::new(server, Arc::clone(&activity));
    let reader = reader.into_std().expect("a socket");
    reader.set_nonblocking(false).expect("an option");
    (Watched::new(io, Inbox::default(), activity, (Arc::clone(large_writes), Some(client))), reader)
}

/// Writes, as hyper does, until the client does not read. Returns the sizes of the writes.
async fn write(watched: &mut Watched<TcpStream>, head: &mut &[u8], body: &mut &[u8]) -> Vec<usize> {
    let mut sizes = Vec::new();
    let writing = async {
        while !body.is_empty() {
            let bufs = [IoSlice::new(head), IoSlice::new(body)];
            let bufs = if head.is_empty() { &bufs[1..] } else { &bufs };
            let size = poll_fn(|cx| Pin::new(&mut *watched).poll_write_vectored(cx, bufs)).await.expect("it is open");
            let of_head = size.min(head.len());
            (*head, *body) = (&head[of_head..], &body[size - of_head..]);
            sizes.push(size);
        }
    };
    let _ = timeout(Duration::from_millis(100), writing).await;
    sizes
}

#[tokio::test]
async fn clients_that_do_not_read_keep_few_large_writes_and_the_others_get_small_ones() {
    let large_writes = Arc::default();
    let (head, body) = (vec![b'h'; HEAD_BYTES], vec![b'b'; RESPONSE_BYTES]);
    let mut unread = Vec::new();
    let of_each = MAX_LARGE_WRITES / 2;
    for number in 0..2 {
        for earlier in 0..=of_each {
            let (mut watched, reader) = connect(&large_writes, pod(number)).await;
            let (mut head, mut body) = (&head[..], &body[..]);
            let sizes = write(&mut watched, &mut head, &mut body).await;
            let largest = if earlier < of_each { MAX_LARGE_WRITE_BYTES } else { MAX_WRITE_BYTES };
            assert_eq!(sizes.iter().max(), Some(&largest), "{sizes:?}");
            assert!(!body.is_empty(), "all was written to a client that does not read");
            unread.push((watched, reader, body));
        }
    }
    let (mut watched, _reader) = connect(&large_writes, pod(2)).await;
    let sizes = write(&mut watched, &mut &head[..], &mut &body[..]).await;
    assert!(sizes.iter().all(|size| *size <= MAX_WRITE_BYTES), "{sizes:?}");
    // The first one reads.
    let (mut watched, mut reader, mut body) = unread.swap_remove(0);
    let reading = std::thread::spawn(move || {
        let mut text = vec![0; HEAD_BYTES + RESPONSE_BYTES];
        reader.read_exact(&mut text).map(|()| text)
    });
    let mut last = 0;
    while !body.is_empty() {
        last = write(&mut watched, &mut &[][..], &mut body).await.last().copied().unwrap_or(last);
    }
    let text = reading.join().expect("it ends").expect("all of it");
    assert!(text[..HEAD_BYTES].iter().all(|byte| *byte == b'h') && text[HEAD_BYTES..].iter().all(|byte| *byte == b'b'));
    assert!(last <= MAX_WRITE_BYTES && watched.large.is_none(), "it keeps a large write after the last one: {last}");
}
