//! Parsing of responses and of the kernel's files.

mod cgroup {
    use crate::cgroup::*;

    #[test]
    fn a_field_is_found_by_its_full_name() {
        let text = "usage_usec 30\nuser_usec 10\nsystem_usec 20\n";
        assert_eq!(field(text, "user_usec"), Some(10));
        assert_eq!(field(text, "user"), None);
    }
}

mod clients {
    use crate::clients::*;

    #[test]
    fn a_response_is_complete_if_its_body_is() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(split(answer), Some((200, &b"ok"[..])));
        assert!(is_whole(answer));
        assert!(!is_whole(&answer[..answer.len() - 1]));
        assert!(!is_whole(&answer[..20]));
    }
}

mod machine {
    use crate::machine::*;

    #[test]
    fn usage_by_others_is_busy_time_without_ours() {
        let before = Ticks::read(
            "cpu  100 10 50 800 5 0 7 40 0 0\ncpu0 1 2 3\n",
            "7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 10 5 20 5 20 0 1",
        );
        assert_eq!((before.busy, before.ours, before.all), (200, 40, 1012));
        let after = Ticks { all: before.all + 1000, busy: before.busy + 300, ours: before.ours + 250 };
        let others = after.others_since(before);
        assert!((others.0 - 5.0).abs() < 0.01 && !others.are_quiet(), "{others:?}");
    }
}
