//! Every decoder with its committed corpus: what the fuzzer has tried must go on being taken or refused.
#![allow(missing_docs, dead_code)] // the fuzzer and the writer of seeds use the rest

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/lib.rs"]
mod fuzzed;

#[test]
fn every_committed_input_goes_through_its_decoder() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, run) in fuzzed::TARGETS {
        let folder = corpora.join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut n_inputs = 0;
        for file in files {
            let path = file.expect("an entry").path();
            let input = fs::read(&path).expect("an input");
            println!("{}", path.display());
            run(&input);
            n_inputs += 1;
        }
        assert!(n_inputs > 0, "no corpus for {name}");
    }
}
