//! A response of the metadata server: the first byte chooses the method and how the rest is split into reads. The result must
//! not depend on the split, and nothing may be in a body that was not in the response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::failure::MAX_HEAD_BYTES;
use proxy::upstream::fuzzing::response;

fuzz_target!(|input: &[u8]| {
    let Some((how, bytes)) = input.split_first() else { return };
    let is_head = how % 2 == 1;
    let whole = response(bytes, bytes.len().max(1), is_head);
    let pieces = response(bytes, usize::from(how / 2) + 1, is_head);
    assert_eq!(whole, pieces);
    if let Some((status, body, is_kept)) = whole {
        assert!((100..1000).contains(&status) && body.len() <= bytes.len());
        assert!(!(is_head || matches!(status, 204 | 304)) || body.is_empty());
        // One more byte is nobody's response.
        assert!(!is_kept || response(&[bytes, b"H"].concat(), MAX_HEAD_BYTES, is_head).is_none_or(|(_, _, kept)| !kept));
    }
});
