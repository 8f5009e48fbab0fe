//! Links that break and processes that are stopped for a while, in small clusters and in large ones.

use broadleaf_sim::{Mutation, Plan, run};

/// Hosts that are missed and come back, that are given up, and stops of processes.
fn totals(plans: impl Iterator<Item = Plan>) -> [u32; 3] {
    plans.fold([0; 3], |[rejoined, given_up, stops], plan| {
        let outcome = run(plan, false).unwrap_or_else(|failure| panic!("{failure}"));
        [
            rejoined + outcome.rejoined,
            given_up + outcome.given_up,
            stops + outcome.stops,
        ]
    })
}

fn with_links_that_break(seed: u64, mutation: Mutation) -> Plan {
    let plan = Plan::of_seed(seed, mutation);
    Plan {
        n_hosts: plan.n_hosts.max(1),
        breaking_link_percent: 100,
        n_stops: plan.n_stops.max(2),
        ..plan
    }
}

#[test]
fn small_clusters_whose_links_all_break_keep_what_lives() {
    let [rejoined, given_up, stops] =
        totals((0..1000).map(|seed| with_links_that_break(seed, Mutation::None)));
    println!("{rejoined} came back, {given_up} were given up, {stops} stops");
    assert!(rejoined > 300 && given_up > 100 && stops > 1000);
}

#[test]
fn a_thousand_hosts_whose_links_break_keep_what_lives() {
    let [rejoined, given_up, stops] = totals((0..20).map(|seed| Plan::of_many_hosts(seed, 1000)));
    println!("{rejoined} came back, {given_up} were given up, {stops} stops");
    assert!(rejoined > 4000 && given_up > 1000 && stops > 500);
}

#[test]
fn each_fault_of_links_is_found() {
    for mutation in [
        Mutation::NeverDials,
        Mutation::LosesReports,
        Mutation::LosesOrders,
        Mutation::ReversesLinks,
        Mutation::AbsenceUnsaid,
        Mutation::ReturnUnsaid,
        Mutation::JudgesAfterStop,
        Mutation::FailuresUnsaid,
    ] {
        let mut plans = (0..1000).map(|seed| with_links_that_break(seed, mutation));
        let found = plans.find_map(|plan| run(plan, false).err());
        let found = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        println!("{mutation:?}: {found}");
    }
}
