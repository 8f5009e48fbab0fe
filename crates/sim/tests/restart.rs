//! Controllers that are started again, under many seeds.

use broadleaf_sim::{RestartMutation, RestartOutcome, run_restart};

const SEEDS: u64 = 1000;

#[test]
fn what_has_begun_ends_once_what_has_not_never_runs_and_engines_stay() {
    let mut all = RestartOutcome::default();
    for seed in 0..SEEDS {
        let outcome =
            run_restart(seed, RestartMutation::None).unwrap_or_else(|error| panic!("{error}"));
        all.restarts += outcome.restarts;
        all.rejoined += outcome.rejoined;
        all.lost_hosts += outcome.lost_hosts;
        all.inherited += outcome.inherited;
        all.taken_back += outcome.taken_back;
        all.ended += outcome.ended;
        all.deaths += outcome.deaths;
    }
    println!("{all:?}");
    assert!(all.restarts > 2_000 && all.rejoined > 2_000, "{all:?}");
    assert!(all.inherited > 500 && all.taken_back > 500, "{all:?}");
    assert!(all.lost_hosts > 500 && all.deaths > 1_000, "{all:?}");
    assert!(all.ended > 100_000, "{all:?}");
}

#[test]
fn each_fault_is_found() {
    for mutation in [
        RestartMutation::LeavesOffers,
        RestartMutation::ForgetsRunning,
        RestartMutation::RenumbersOffers,
        RestartMutation::RepeatsKeys,
    ] {
        let found = (0..SEEDS).find_map(|seed| run_restart(seed, mutation).err());
        println!("{mutation:?}: {found:?}");
        assert!(found.is_some(), "{mutation:?}");
    }
}
