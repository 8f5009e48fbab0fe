//! Broadcasts over a host's lane, under many seeds.

use broadleaf_sim::{LaneMutation, LaneOutcome, run_lane};

const SEEDS: u64 = 2000;

#[test]
fn every_task_of_a_lane_ends_once_and_soon() {
    let mut all = LaneOutcome::default();
    for seed in 0..SEEDS {
        let outcome = run_lane(seed, LaneMutation::None).unwrap_or_else(|error| panic!("{error}"));
        all.answered += outcome.answered;
        all.by_lane += outcome.by_lane;
        all.revoked += outcome.revoked;
        all.deaths += outcome.deaths;
        all.rounds += outcome.rounds;
        all.late_counts += outcome.late_counts;
        all.longest_ns = all.longest_ns.max(outcome.longest_ns);
    }
    println!("{all:?}");
    assert!(
        all.rounds > 10 * SEEDS && all.by_lane > 50 * SEEDS,
        "{all:?}"
    );
    assert!(all.revoked > SEEDS && all.deaths > SEEDS / 5, "{all:?}");
    assert!(all.late_counts > 100, "{all:?}");
    assert!(all.longest_ns < 20_000_000, "{all:?}");
}

#[test]
fn each_fault_is_found() {
    for mutation in [
        LaneMutation::ForgetsTheBell,
        LaneMutation::LooksAtSocketsOnly,
        LaneMutation::SaysNoHurry,
        LaneMutation::TakesNoTimer,
        LaneMutation::IgnoresTheOrder,
        LaneMutation::IgnoresTheOrderOfAnswers,
    ] {
        let found = (0..SEEDS).find_map(|seed| run_lane(seed, mutation).err());
        println!("{mutation:?}: {found:?}");
        assert!(found.is_some(), "{mutation:?}");
    }
}
