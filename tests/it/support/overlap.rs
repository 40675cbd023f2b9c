//! Whether a lock did its work: nobody inside together, fencing tokens in the order of holding.

use std::collections::BTreeMap;

/// One time that somebody held a key, as the holder reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// What was locked.
    pub(crate) key: String,
    /// Who held it.
    pub(crate) instance: String,
    /// The first µs inside.
    pub(crate) start_us: u64,
    /// The last µs inside.
    pub(crate) end_us: u64,
    /// The fencing token that the holder got.
    pub(crate) fencing_token: u64,
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Two were inside at the same time.
    Overlap(Holding, Holding),
    /// The second held the key later, but its fencing token is not greater.
    Order(Holding, Holding),
}

/// Looks at all holdings of each key and reports every violation among them.
///
/// Two holdings of a key that touch in one µs do not overlap: the clock cannot tell.
pub(crate) fn violations(holdings: &[Holding]) -> Vec<Violation> {
    let mut of_key: BTreeMap<&str, Vec<&Holding>> = BTreeMap::new();
    for holding in holdings {
        of_key.entry(&holding.key).or_default().push(holding);
    }
    of_key.into_values().flat_map(violations_of_one_key).collect()
}

fn violations_of_one_key(mut holdings: Vec<&Holding>) -> Vec<Violation> {
    holdings.sort_by_key(|holding| (holding.start_us, holding.end_us));
    let mut found = Vec::new();
    // The one that stays longest among those seen, and the one with the greatest token.
    let mut longest: Option<&Holding> = None;
    let mut greatest: Option<&Holding> = None;
    for next in holdings {
        if let Some(before) = longest.filter(|before| before.end_us > next.start_us) {
            found.push(Violation::Overlap(before.clone(), next.clone()));
        }
        if let Some(before) = greatest.filter(|before| before.fencing_token >= next.fencing_token) {
            found.push(Violation::Order(before.clone(), next.clone()));
        }
        if longest.is_none_or(|before| before.end_us < next.end_us) {
            longest = Some(next);
        }
        if greatest.is_none_or(|before| before.fencing_token < next.fencing_token) {
            greatest = Some(next);
        }
    }
    found
}

/// Asserts that there is no violation, and shows the first ones otherwise.
pub(crate) fn check_exclusive(holdings: &[Holding]) {
    let found = violations(holdings);
    assert!(
        found.is_empty(),
        "{} violations among {} holdings, the first: {:#?}",
        found.len(),
        holdings.len(),
        &found[..found.len().min(3)]
    );
}

#[cfg(test)]
mod tests {
    use super::{Holding, Violation, check_exclusive, violations};

    fn holding(key: &str, start_us: u64, end_us: u64, fencing_token: u64) -> Holding {
        Holding { key: key.to_owned(), instance: "a".to_owned(), start_us, end_us, fencing_token }
    }

    #[test]
    fn turns_in_any_order_of_arrival_are_fine() {
        let turns = [
            holding("k", 20, 30, 3),
            holding("k", 0, 10, 1),
            holding("k", 10, 20, 2),
            holding("other", 5, 25, 1),
        ];
        assert_eq!(violations(&turns), []);
    }

    #[test]
    fn two_inside_together_are_an_overlap() {
        let (first, second) = (holding("k", 0, 11, 1), holding("k", 10, 20, 2));
        let expected = [Violation::Overlap(first.clone(), second.clone())];
        assert_eq!(violations(&[second, first]), expected);
    }

    #[test]
    fn a_long_holding_overlaps_every_one_inside_it() {
        let long = holding("k", 0, 100, 1);
        let (second, third) = (holding("k", 10, 20, 2), holding("k", 30, 40, 3));
        let expected = [
            Violation::Overlap(long.clone(), second.clone()),
            Violation::Overlap(long.clone(), third.clone()),
        ];
        assert_eq!(violations(&[long, second, third]), expected);
    }

    #[test]
    fn a_token_used_twice_or_going_back_is_out_of_order() {
        let turns =
            [holding("k", 0, 1, 5), holding("k", 1, 2, 5), holding("k", 2, 3, 4), holding("k", 3, 4, 6)];
        let order = |later: usize| Violation::Order(turns[0].clone(), turns[later].clone());
        assert_eq!(violations(&turns), [order(1), order(2)]);
    }

    #[test]
    #[should_panic(expected = "1 violations among 2 holdings")]
    fn the_check_fails_on_a_violation() {
        check_exclusive(&[holding("k", 0, 11, 1), holding("k", 10, 20, 2)]);
    }
}
