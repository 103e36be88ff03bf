//! Kendall's tau: measures how well a sequence is sorted.

/// Returns 1 if the sequence is ascending, -1 if it is descending.
pub(crate) fn kendall_tau(sequence: &[i64]) -> f64 {
    let mut balance = 0_i64;
    for (at, one) in sequence.iter().enumerate() {
        balance += sequence[at + 1..].iter().map(|other| (other - one).signum()).sum::<i64>();
    }
    let pairs = sequence.len() * sequence.len().saturating_sub(1) / 2;
    if pairs == 0 { 1.0 } else { balance as f64 / pairs as f64 }
}

#[test]
fn kendall_tau_measures_order() {
    assert_eq!([kendall_tau(&[1, 2, 5]), kendall_tau(&[3, 2, 1])], [1.0, -1.0]);
    assert!(kendall_tau(&[2, 1, 3]) < 1.0);
}
