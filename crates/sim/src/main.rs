//! Runs one seed, or a recording: `--seed N [--trace] [--mutation revoke|unclaimed]`, or
//! `replay FILE [--inputs-only]`.

use std::process::ExitCode;

use broadleaf_sim::{Mutation, Plan, replay, replay_inputs, run};

const USAGE: &str = "usage: broadleaf-sim --seed N [--trace] [--mutation revoke|unclaimed]
       broadleaf-sim replay FILE [--inputs-only]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).cloned()
    };
    if let Some(path) = value("replay") {
        let compares = !arguments.iter().any(|a| a == "--inputs-only");
        return run_recording(&path, compares);
    }
    let Some(seed) = value("--seed").and_then(|s| s.parse().ok()) else {
        eprintln!("{USAGE}");
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

fn run_recording(path: &str, compares: bool) -> ExitCode {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (result, how) = if compares {
        (replay(&text), "as recorded")
    } else {
        (replay_inputs(&text), "not compared")
    };
    match result {
        Ok(replayed) => {
            let (calls, outputs) = (replayed.calls, replayed.outputs);
            println!("{path}: {calls} calls with {outputs} outputs, {how}");
            if let Some(end) = replayed.end {
                println!("the recording ended before its node: {}", end.name());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}
