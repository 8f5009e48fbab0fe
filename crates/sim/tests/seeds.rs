//! Many seeds, the same seed twice, and a fault that must be found.

use broadleaf_sim::{Mutation, Plan, run};

fn n_seeds() -> u64 {
    std::env::var("BROADLEAF_SIM_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000)
}

#[test]
fn every_seed_ends_well() {
    let failures: Vec<String> = (0..n_seeds())
        .filter_map(|seed| run(Plan::of_seed(seed, Mutation::None), false).err())
        .map(|failure| failure.to_string())
        .collect();
    assert!(
        failures.is_empty(),
        "{} seeds failed, the first of them:\n{}",
        failures.len(),
        failures[..failures.len().min(10)].join("\n")
    );
}

#[test]
fn the_seeds_reach_every_ending_and_every_move() {
    let mut resolved = [0; 7];
    let (mut retried, mut revoked, mut steals, mut discarded, mut restarts) = (0, 0, 0, 0, 0);
    let (mut seated, mut drained, mut released, mut rejoined) = (0, 0, 0, 0);
    // Most clients let their tasks continue when they leave: fewer seeds discard too few.
    for seed in 0..500 {
        let plan = Plan::of_seed(seed, Mutation::None);
        let outcome = run(plan, false).unwrap_or_else(|failure| panic!("{failure}"));
        seated += outcome.seated;
        drained += outcome.drained.0;
        released += outcome.drained.1;
        rejoined += outcome.rejoined;
        let counters = outcome.counters;
        for (total, n) in resolved.iter_mut().zip(counters.resolved) {
            *total += n;
        }
        retried += counters.retried;
        revoked += counters.revoked;
        steals += counters.steals;
        discarded += counters.discarded;
        restarts += counters.engines.iter().map(|e| e.restarts).sum::<u64>();
    }
    println!(
        "by status {resolved:?}, retried {retried}, steals {steals}, revoked {revoked}, \
         discarded {discarded}, restarts {restarts}"
    );
    assert!(resolved[..6].iter().all(|n| *n > 100), "{resolved:?}");
    assert!(drained.min(released) > 100, "{drained}, {released}");
    assert!(rejoined > 25, "{rejoined} links broke and went on");
    assert!(seated > 500, "{seated} ranks of worlds became engines");
    assert!(
        retried
            .min(revoked)
            .min(steals)
            .min(discarded)
            .min(restarts)
            > 100
    );
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    for seed in 0..50 {
        let plan = Plan::of_seed(seed, Mutation::None);
        assert_eq!(run(plan.clone(), false), run(plan, false), "seed {seed}");
    }
}

fn finds(mutation: Mutation) {
    finds_in((0..1000).map(|seed| Plan::of_seed(seed, mutation)));
}

fn finds_in(mut plans: impl Iterator<Item = Plan>) {
    let failure = plans.find_map(|plan| run(plan, false).err());
    let failure = failure.expect("the simulation does not find the mistake");
    println!("found: {failure}");
}

#[test]
fn finds_revokes_answered_as_won_though_started() {
    finds(Mutation::RevokeAlwaysWon);
}

#[test]
fn finds_started_tasks_reported_as_unclaimed() {
    finds(Mutation::AllUnclaimed);
}

#[test]
fn finds_offers_that_never_reached_a_relay_counted_as_started() {
    let found =
        (0..1000).any(|seed| run(Plan::of_seed(seed, Mutation::ForgetsOnTheWay), false).is_err());
    assert!(found);
}

#[test]
fn the_seeds_have_hosts_and_lose_them() {
    let plans: Vec<Plan> = (0..200)
        .map(|seed| Plan::of_seed(seed, Mutation::None))
        .collect();
    let with_hosts = plans
        .iter()
        .filter(|p| p.n_hosts > 0 && p.n_faults > 0)
        .count();
    assert!(with_hosts > 40, "{with_hosts}");
}

#[test]
fn finds_time_that_runs_while_arguments_travel() {
    finds(Mutation::DeliveredTooSoon);
}

#[test]
fn finds_engines_that_run_tasks_unprepared() {
    finds(Mutation::LosesPreparations);
}

#[test]
fn finds_waiting_tasks_that_the_controller_does_not_know_of() {
    finds(Mutation::WaitsUnsaid);
}

#[test]
fn finds_results_that_are_held_back() {
    finds(Mutation::FlushersSleep);
}

#[test]
fn an_observer_that_gets_no_answer_is_found() {
    finds(Mutation::LeavesObserversWaiting);
}

#[test]
fn finds_processes_killed_because_a_relay_named_them() {
    // One lie of some thousands has a process killed, so these relays lie more than those of the other tests.
    finds_in((0..1000).map(|seed| {
        let plan = Plan::of_seed(seed, Mutation::BelievesRelays);
        Plan {
            n_hosts: plan.n_hosts.max(1),
            n_lies: 200,
            ..plan
        }
    }));
}

#[test]
fn relays_that_lie_are_cut_off_and_harm_nobody_else() {
    let plans = (0..1000).map(|seed| Plan::of_seed(seed, Mutation::None));
    let lied_to = plans.filter(|plan| plan.n_lies > 0 && plan.n_hosts > 0);
    let expelled: u32 = lied_to
        .map(|plan| run(plan, false).unwrap_or_else(|failure| panic!("{failure}")))
        .map(|outcome| outcome.expelled)
        .sum();
    assert!(expelled > 100, "{expelled}");
}

#[test]
fn the_seeds_nest_tasks_in_tasks() {
    let nested = (0..200).filter(|seed| {
        let plan = Plan::of_seed(*seed, Mutation::None);
        let outcome = run(plan.clone(), false).unwrap_or_else(|failure| panic!("{failure}"));
        plan.nests && outcome.max_levels >= 3
    });
    let n = nested.count();
    assert!(n > 20, "{n}");
}
