//! Silent links and stopped processes, under many seeds.

use broadleaf_sim::run_liveness;

#[test]
fn who_speaks_in_time_stays_and_who_does_not_is_given_up_once() {
    let (mut gone, mut stayed, mut stops, mut late_ticks) = (0, 0, 0, 0);
    for seed in 0..2000 {
        let outcome = run_liveness(seed).unwrap_or_else(|error| panic!("{error}"));
        gone += outcome.gone;
        stayed += outcome.stayed;
        stops += outcome.stops;
        late_ticks += outcome.late_ticks;
    }
    println!("{gone} given up, {stayed} stayed, {stops} stops, {late_ticks} late ticks");
    assert!(gone > 1000 && stayed > 1000 && stops > 10_000 && late_ticks > 1000);
}
