//! Large results and arguments of a client on another host, under many seeds.

use broadleaf_sim::{run_far_client, run_uploads};

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

#[test]
fn every_argument_is_whole_or_missed_and_all_memory_is_given_back() {
    let (mut whole, mut refused, mut dropped) = (0, 0, 0);
    for seed in 0..1000 {
        let outcome = run_uploads(seed).unwrap_or_else(|error| panic!("{error}"));
        whole += outcome.whole;
        refused += outcome.refused;
        dropped += outcome.dropped;
    }
    println!("{whole} whole, {refused} refused, {dropped} dropped");
    assert!(whole > 10_000 && refused > 1000 && dropped > 1000);
}
