//! Random writes of a task: every byte is sent once and in order, whole lines at once, and no more is held than may be.

use broadleaf_engine::{Lines, Stream};
use proptest::prelude::*;

const MAX_HELD_BYTES: usize = 12;

fn text() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => b'a'..=b'z', 1 => Just(b'\n')];
    proptest::collection::vec(byte, 0..20)
}

proptest! {
    #[test]
    fn every_byte_is_sent_once_and_in_order(
        steps in proptest::collection::vec((0..2_usize, proptest::option::weighted(0.8, text())), 0..40),
    ) {
        let mut lines = Lines::new(MAX_HELD_BYTES);
        let (mut written, mut sent, mut held) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
        for (index, text) in steps {
            let stream = Stream::ALL[index];
            let Some(text) = text else {
                let rest = lines.take(stream);
                prop_assert_eq!(rest, &held[index][..]);
                sent[index].extend_from_slice(rest);
                held[index].clear();
                continue;
            };
            written[index].extend_from_slice(&text);
            let step = lines.write(stream, &text);
            sent[index].extend_from_slice(step.complete);
            if step.complete.is_empty() {
                prop_assert!(!text.contains(&b'\n'), "a line is held");
            } else {
                held[index].clear();
            }
            // What somebody else knows of the unfinished line goes on with what is new.
            prop_assert_eq!(step.held_before, held[index].len());
            held[index].extend_from_slice(step.held);
            prop_assert!(held[index].len() <= MAX_HELD_BYTES);
            prop_assert!(!held[index].contains(&b'\n'));
        }
        for index in 0..2 {
            let rest = lines.take(Stream::ALL[index]);
            sent[index].extend_from_slice(rest);
            prop_assert_eq!(&sent[index], &written[index]);
        }
    }
}
