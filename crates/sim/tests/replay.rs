//! Recordings of simulated clusters are replayed; what does not go as it was recorded is told.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_core::recording::End;
use broadleaf_sim::{Mutation, Plan, ReplayError, record, replay, replay_inputs};

/// A recording of a controller that has moved, restarted and interrupted tasks.
fn recording() -> String {
    let (_, recordings) = record(Plan::of_seed(7, Mutation::None)).unwrap();
    recordings.into_iter().next().unwrap()
}

fn difference(text: &str) -> (usize, String) {
    match replay(text) {
        Err(ReplayError::Differs(difference)) => (difference.line, difference.to_string()),
        other => panic!("no difference: {other:?}"),
    }
}

/// The text with one line changed, and the number of that line.
fn changed(
    text: &str,
    is_it: impl Fn(&str) -> bool,
    change: impl Fn(&str) -> String,
) -> (String, usize) {
    let at = text.lines().position(is_it).unwrap();
    let lines = text.lines().enumerate();
    let lines = lines.map(|(i, line)| {
        if i == at {
            change(line)
        } else {
            line.to_owned()
        }
    });
    (lines.collect::<Vec<_>>().join("\n"), at + 1)
}

#[test]
fn every_node_of_many_seeds_is_replayed_as_it_was_recorded() {
    let (mut controllers, mut relays, mut outputs) = (0, 0, 0);
    for seed in 0..150 {
        let (_, recordings) = record(Plan::of_seed(seed, Mutation::None)).unwrap();
        for (node, text) in recordings.iter().enumerate() {
            let replayed = replay(text);
            let replayed =
                replayed.unwrap_or_else(|error| panic!("seed {seed}, node {node}: {error}"));
            assert_eq!(replayed.calls, text.lines().count() as u64 - 2);
            outputs += replayed.outputs;
            if node == 0 {
                controllers += replayed.calls;
            } else {
                relays += replayed.calls;
            }
        }
    }
    println!("{controllers} calls of controllers' nodes, {relays} of relays, {outputs} outputs");
    assert!(controllers > 100_000 && relays > 8_000 && outputs > 50_000);
}

#[test]
fn recording_changes_nothing() {
    for seed in 0..50 {
        let (outcome, _) = record(Plan::of_seed(seed, Mutation::None)).unwrap();
        let unrecorded = broadleaf_sim::run(Plan::of_seed(seed, Mutation::None), false).unwrap();
        assert_eq!(outcome, unrecorded);
    }
}

#[test]
fn a_controller_that_decides_otherwise_is_told() {
    let text = recording();
    let (other, _) = changed(
        &text,
        |line| line.contains("\"n_engines\""),
        |line| {
            let field = "\"n_engines\":";
            let (before, after) = line.split_once(field).unwrap();
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{field}9{rest}")
        },
    );
    let (_, what) = difference(&other);
    assert!(
        what.contains("recorded were") && what.contains("Spawn"),
        "{what}"
    );
}

#[test]
fn a_line_that_is_missing_or_that_somebody_changed_is_told() {
    let text = recording();
    let is_up = |line: &str| line.contains("{\"client_up\"");
    let (edited, _) = changed(&text, is_up, |line| {
        line.replace("\"client\":", "\"client\":9")
    });
    assert!(replay(&edited).is_err());
    let is_answered = |line: &str| line.contains("\t2\t");
    let (edited, at) = changed(&text, is_answered, |line| line.replace("\t2\t", "\t3\t"));
    let (line, what) = difference(&edited);
    assert_eq!(line, at);
    assert!(what.contains("recorded were 3 outputs"), "{what}");
    assert!(what.contains("it returned 2 outputs"), "{what}");
    let replayed = replay_inputs(&edited).unwrap();
    assert_eq!(replayed, replay(&text).unwrap());
}

#[test]
fn a_call_that_did_not_return_is_made() {
    let text = recording();
    let (before, last) = text.trim_end().rsplit_once('\n').unwrap();
    let call = last.split('\t').take(2).collect::<Vec<_>>().join("\t");
    let whole = replay(&text).unwrap();
    let cut = replay(&format!("{before}\n{call}")).unwrap();
    assert_eq!(cut, whole);
}

#[test]
fn why_a_recording_ended_is_told() {
    let text = recording();
    assert_eq!(replay(&text).unwrap().end, None);
    assert_eq!(
        replay(&format!("{text}end\tlimit\n")).unwrap().end,
        Some(End::Limit)
    );
    assert_eq!(
        replay(&format!("{text}end\tstopped\n")).unwrap().end,
        Some(End::Stopped)
    );
}

#[test]
fn what_is_no_recording_is_told_with_its_line() {
    let told = |text: &str| match replay(text) {
        Err(ReplayError::Unreadable(unreadable)) => unreadable.to_string(),
        other => panic!("it was read: {other:?}"),
    };
    assert_eq!(told(""), "line 1: not \"broadleaf recording 1\"");
    let newer = "broadleaf recording 2\n";
    assert_eq!(
        told(newer),
        "line 1: a recording of format 2; this program reads 1"
    );
    assert!(told("broadleaf recording 1\n{}").starts_with("line 2: missing field"));
    let head = "broadleaf recording 1\n{\"version\":\"0\",\"start\":\"relay\"}\n";
    assert_eq!(
        told(&format!("{head}soon\t\"schedule\"")),
        "line 3: not a time: \"soon\""
    );
    assert!(told(&format!("{head}5\t\"no_such_call\"")).starts_with("line 3: unknown variant"));
    assert_eq!(
        told(&format!("{head}5\t\"schedule\"\tx\t0")),
        "line 3: not a number: \"x\""
    );
    assert_eq!(
        told(&format!("{head}end\tsoon")),
        "line 3: no such end: \"soon\""
    );
    let huge = r#"{"input":{"output":{"host":0,"engine":0,"record":{"task":1,"engine":0,"stream":1,"bytes":9999999999}}}}"#;
    assert!(told(&format!("{head}5\t{huge}")).contains("do not fit into a frame"));
}
