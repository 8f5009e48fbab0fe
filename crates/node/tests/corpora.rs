//! Every decoder with its committed corpus: what the fuzzer has tried must go on being taken or refused.
#![allow(missing_docs, dead_code)] // the fuzzer and the writer of seeds use the rest

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
mod fuzzed;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

#[test]
fn every_committed_input_goes_through_its_decoder() {
    for (name, run) in fuzzed::TARGETS {
        let folder = corpora().join(name);
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

#[test]
fn the_committed_seeds_are_what_the_encoders_write() {
    let stale: Vec<String> = fuzzed::seeds::all()
        .into_iter()
        .filter(|seed| {
            let path = corpora().join(seed.target).join(&seed.name);
            fs::read(path).ok().as_deref() != Some(&seed.input[..])
        })
        .map(|seed| format!("{}/{}", seed.target, seed.name))
        .collect();
    assert!(
        stale.is_empty(),
        "`cargo run --bin seeds` in crates/fuzz writes {}",
        stale.join(", ")
    );
}
