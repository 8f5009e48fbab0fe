//! Replays one seed: `--seed N [--trace] [--mutation revoke|unclaimed]`.

use std::process::ExitCode;

use broadleaf_sim::{Mutation, Plan, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).cloned()
    };
    let Some(seed) = value("--seed").and_then(|s| s.parse().ok()) else {
        eprintln!("usage: broadleaf-sim --seed N [--trace] [--mutation revoke|unclaimed]");
        return ExitCode::from(2);
    };
    let mutation = match value("--mutation").as_deref() {
        Some("revoke") => Mutation::RevokeAlwaysWon,
        Some("unclaimed") => Mutation::AllUnclaimed,
        _ => Mutation::None,
    };
    let print = arguments.iter().any(|a| a == "--trace");
    match run(Plan::of_seed(seed, mutation), print) {
        Ok(outcome) => {
            println!("seed {seed}: ok, trace {:016x}", outcome.trace_hash);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
