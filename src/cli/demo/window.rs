//! Promise 1, checked from the times at which jobs left: in every window of length W at most `1 + (W + catch_up) / interval` do.

use crate::model::rate::Rate;

/// The width of a window that holds too many of some times in their order, to within a microsecond.
///
/// From job i to job j there are `j - i + 1` jobs; that is too many when `(j - i) × period > (width + catch_up + 1) × count`. So j is
/// compared with that i before it whose `i × period - at × count` is the least, and one walk finds any such window.
pub(super) fn broken_window(times: &[u64], rate: Rate, catch_up_us: u64) -> Option<u64> {
    let (count, period) = (i128::from(rate.count()), rate.period().as_micros() as i128);
    let allowed = i128::from(catch_up_us + 1) * count;
    let mut least: Option<(i128, u64)> = None;
    for (n, at) in times.iter().enumerate() {
        let place = n as i128 * period - i128::from(*at) * count;
        match least {
            Some((value, from)) if place - value > allowed => return Some(at - from),
            Some((value, _)) if place >= value => {}
            _ => least = Some((place, *at)),
        }
    }
    None
}

/// The same where workers take jobs: in every window of length W at most `2 + (ready_window + catch_up) / interval + (W + catch_up) / interval`
/// jobs are given out, whatever workers did before. Of each job it is known that it was given out between two moments, and the list is in
/// the order of the first ones.
pub(super) fn broken_in_hand(given: &[(u64, u64)], rate: Rate, catch_up_us: u64, ready_window_us: u64) -> Option<u64> {
    let (count, period) = (i128::from(rate.count()), rate.period().as_micros() as i128);
    let more = 2 + i128::from(ready_window_us + catch_up_us) * count / period;
    let (mut largest, mut latest) = (i128::MIN, 0);
    for (n, (first, last)) in given.iter().enumerate() {
        let jobs = n as i128 * period;
        largest = largest.max(i128::from(*first) * count - jobs);
        latest = latest.max(*last);
        let allowed = (more - 1) * period + i128::from(catch_up_us) * count;
        if i128::from(latest) * count - jobs + allowed < largest {
            return Some(*last);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_hold_what_the_rate_and_the_catch_up_allow_and_not_one_job_more() {
        let rate = Rate::parse("10/s").expect("a rate");
        assert_eq!(broken_window(&[0, 80_000, 180_000], rate, 20_000), None);
        assert_eq!(broken_window(&[0, 79_999, 180_000], rate, 20_000), None, "to within a microsecond");
        assert_eq!(broken_window(&[0, 79_998], rate, 20_000), Some(79_998));
        assert_eq!(broken_window(&[0, 100_000, 200_000, 250_000, 350_000], rate, 20_000), Some(250_000));
    }

    #[test]
    fn a_hand_may_be_given_what_lay_ready_for_a_window_and_not_one_job_more() {
        let rate = Rate::parse("10/s").expect("a rate");
        let together = |n: usize| vec![(0, 1_000); n];
        assert_eq!(broken_in_hand(&together(4), rate, 20_000, 250_000), None, "2 + 2 + 0");
        assert_eq!(broken_in_hand(&together(5), rate, 20_000, 250_000), Some(1_000));
        let blocked: Vec<(u64, u64)> = (0..30).map(|n| (n * 100_000, n * 100_000)).collect();
        assert_eq!(broken_in_hand(&blocked, rate, 20_000, 250_000), None);
    }
}
