//! What is read of answers and of the kernel.

mod cgroup {
    use crate::cgroup::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "usage_usec 30\nuser_usec 10\nsystem_usec 20\n";
        assert_eq!(field(text, "user_usec"), Some(10));
        assert_eq!(field(text, "user"), None);
    }
}

mod clients {
    use crate::clients::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(split(answer), Some((200, &b"ok"[..])));
        assert!(is_whole(answer));
        assert!(!is_whole(&answer[..answer.len() - 1]));
        assert!(!is_whole(&answer[..20]));
    }
}
