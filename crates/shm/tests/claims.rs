//! Offers on a claim board: who wins them, what runs, and whom an interrupt reaches.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use broadleaf_proto::limits::CLAIM_SLOTS;
use broadleaf_shm::ClaimBoard;

fn pair() -> (ClaimBoard, ClaimBoard) {
    let (node, fd) = ClaimBoard::create().unwrap();
    let engine = ClaimBoard::from_fd(&fd).unwrap();
    (node, engine)
}

#[test]
fn an_offer_is_claimed_once_and_runs_until_finished() {
    let (node, engine) = pair();
    assert!(node.running().is_empty());
    assert!(!engine.claim(0, 0), "nothing offered");
    assert!(node.offer(0));
    assert!(engine.claim(0, 0));
    assert_eq!(node.running(), [0]);
    engine.finish(0);
    assert!(node.running().is_empty());
    assert!(!engine.claim(0, 0));
    assert!(!node.revoke(0));
}

#[test]
fn a_revoked_offer_cannot_be_claimed() {
    let (node, engine) = pair();
    node.offer(9);
    assert!(node.revoke(9));
    assert!(!node.revoke(9));
    assert!(!engine.claim(0, 9));
    assert!(node.running().is_empty());
}

#[test]
fn a_full_slot_takes_no_second_offer() {
    let (node, engine) = pair();
    assert!(node.offer(3));
    assert!(!node.offer(3 + CLAIM_SLOTS as u32));
    assert!(
        !engine.claim(0, 3 + CLAIM_SLOTS as u32),
        "same slot, another offer"
    );
    assert!(engine.claim(0, 3));
    assert!(node.offer(3 + CLAIM_SLOTS as u32));
}

#[test]
fn unclaimed_gives_back_whole_numbers_oldest_first_over_the_wrap() {
    let (node, engine) = pair();
    let first = u32::MAX - 2000;
    let offers: Vec<u32> = (0..CLAIM_SLOTS as u32)
        .map(|i| first.wrapping_add(i))
        .collect();
    let next = first.wrapping_add(CLAIM_SLOTS as u32);
    assert!(offers.iter().all(|offer| node.offer(*offer)));
    assert_eq!(node.unclaimed(next), offers);
    for offer in offers.iter().step_by(3) {
        assert!(engine.claim(0, *offer));
    }
    let left = |i: &usize| !i.is_multiple_of(3);
    let expected: Vec<u32> = (0..CLAIM_SLOTS).filter(left).map(|i| offers[i]).collect();
    assert_eq!(node.unclaimed(next), expected);
    assert_eq!(
        node.running(),
        [*offers.iter().step_by(3).next_back().unwrap()]
    );
}

#[test]
fn an_interrupt_reaches_the_named_task_only_and_once() {
    let (node, engine) = pair();
    assert!(!engine.take_interrupt(0));
    node.offer(u32::MAX);
    assert!(!node.request_interrupt(u32::MAX), "not claimed yet");
    engine.claim(0, u32::MAX);
    assert!(!node.is_interrupt_open(u32::MAX), "not asked yet");
    assert!(node.request_interrupt(u32::MAX));
    assert!(node.is_interrupt_open(u32::MAX) && !node.is_interrupt_open(0));
    assert!(engine.is_interrupt_requested(0) && engine.is_interrupt_requested(0));
    assert!(engine.take_interrupt(0));
    assert!(!engine.is_interrupt_requested(0) && !engine.take_interrupt(0));
    assert!(!node.is_interrupt_open(u32::MAX), "taken");
    assert!(node.request_interrupt(u32::MAX));
    engine.finish(0);
    assert!(!engine.take_interrupt(0), "between tasks");
    assert!(!node.is_interrupt_open(u32::MAX), "ended");
    node.offer(0);
    engine.claim(0, 0);
    assert!(!engine.take_interrupt(0), "meant for the task before");
    assert!(!node.request_interrupt(u32::MAX));
}

#[test]
fn an_interrupt_of_a_task_that_waits_is_taken_at_its_own_level() {
    let (node, engine) = pair();
    node.offer(1);
    node.offer(2);
    assert!(engine.claim(0, 1) && engine.claim(1, 2));
    assert_eq!(node.running(), [1, 2]);
    assert!(node.request_interrupt(1));
    assert!(!engine.take_interrupt(1), "meant for the one below");
    assert!(node.is_interrupt_open(1));
    engine.finish(1);
    assert!(engine.take_interrupt(0));
    assert!(!node.request_interrupt(2), "ended");
}

#[test]
fn each_offer_has_exactly_one_winner() {
    const ROUNDS: u32 = 200_000;
    let (node, engine) = pair();
    let claimed = Arc::new(AtomicUsize::new(0));
    let start = Arc::new(Barrier::new(2));
    // Offers are made ahead of both, so that the two repeatedly meet on the same slots.
    let (ahead, from) = (CLAIM_SLOTS as u32 / 2, u32::MAX - ROUNDS / 2);
    let at = move |i: u32| from.wrapping_add(i);
    (0..ahead).for_each(|i| assert!(node.offer(at(i))));
    let runner = std::thread::spawn({
        let (claimed, start) = (claimed.clone(), start.clone());
        move || {
            start.wait();
            for i in 0..ROUNDS {
                if engine.claim(0, at(i)) {
                    claimed.fetch_add(1, Ordering::Relaxed);
                    engine.finish(0);
                }
            }
        }
    });
    start.wait();
    let mut revoked = 0;
    for i in 0..ROUNDS {
        revoked += usize::from(node.revoke(at(i)));
        if i + ahead < ROUNDS {
            assert!(node.offer(at(i + ahead)), "the slot was claimed or revoked");
        }
    }
    runner.join().unwrap();
    // Offers that the engine passed before they were made remain; none was won twice.
    let left = node.unclaimed(at(ROUNDS)).len();
    assert_eq!(
        claimed.load(Ordering::Relaxed) + revoked + left,
        ROUNDS as usize
    );
    assert_eq!(left, 0);
    assert!(node.running().is_empty());
}
