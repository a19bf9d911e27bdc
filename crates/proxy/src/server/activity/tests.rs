use super::*;

#[test]
fn hyper_gets_one_head_per_wakeup() {
    let activity = Arc::new(Activity::new());
    activity.tick();
    activity.received(0, true, false);
    assert!(activity.may_have_next_head(), "this head is incomplete");
    activity.received(1, false, false);
    drop(activity.answering());
    activity.note_more(true);
    assert!(!activity.may_have_next_head() && activity.has_withheld(), "a request was answered since this wakeup");
    activity.tick();
    assert!(activity.may_have_next_head());
}

#[test]
fn a_request_whose_body_is_still_to_come_is_no_progress() {
    let activity = Arc::new(Activity::new());
    activity.received(1, true, false);
    let _answering = activity.answering();
    assert!(activity.useless_since().is_some(), "it may be closed for another connection");
    activity.received(0, false, false);
    assert!(activity.useless_since().is_none());
}

#[test]
fn hyper_gets_the_next_head_only_after_the_response_is_written() {
    let activity = Arc::new(Activity::new());
    assert!(!activity.is_busy());
    let answering = activity.answering();
    assert!(activity.is_busy());
    activity.blocked();
    drop(answering);
    assert!(activity.is_busy(), "the client has not read the response");
    activity.sent();
    assert!(!activity.is_busy());
}
