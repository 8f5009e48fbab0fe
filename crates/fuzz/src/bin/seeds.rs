//! Writes the seeds into the corpora: `cargo run --bin seeds` in `crates/fuzz`.

use std::fs;
use std::path::Path;

fn main() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for seed in broadleaf_fuzz::seeds::all() {
        let folder = corpora.join(seed.target);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(seed.name), seed.input).expect("a file");
    }
}
