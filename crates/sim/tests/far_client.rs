//! Large results of a client on another host, under many seeds.

use broadleaf_sim::run_far_client;

#[test]
fn every_result_ends_once_and_nothing_is_kept() {
    let (mut delivered, mut given_up, mut again) = (0, 0, 0);
    for seed in 0..1000 {
        let outcome = run_far_client(seed).unwrap_or_else(|error| panic!("{error}"));
        delivered += outcome.delivered;
        given_up += outcome.given_up;
        again += outcome.again;
    }
    println!("{delivered} delivered, {given_up} abandoned, {again} objects fetched again");
    assert!(delivered > 10_000 && given_up > 1000 && again > 1000);
}
