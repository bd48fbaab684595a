//! Regular expressions for texts in requests: numbers within bounds, and durations and rates made of them. They accept
//! what the parser accepts, except for leading zeros, which nobody writes.

use std::time::Duration;

/// The units of a duration, each with its length in microseconds.
const UNITS: [(&str, u128); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

/// The most digits of a number.
const DIGITS: usize = 15;

/// A whole number from `least` to `most`.
pub fn number(least: u128, most: u128) -> String {
    let (shortest, longest) = (least.to_string().len(), most.to_string().len());
    let (lowest, highest) =
        (|digits: usize| 10_u128.pow(digits as u32 - 1), |digits: usize| 10_u128.pow(digits as u32) - 1);
    // Lengths at which every number is allowed form one part, in the middle; shorter and longer numbers have bounds of
    // their own.
    let is_whole = |digits: usize| digits > 1 && least <= lowest(digits) && highest(digits) <= most;
    let whole: Vec<usize> = (shortest..=longest).filter(|digits| is_whole(*digits)).collect();
    let mut parts = Vec::new();
    for digits in shortest..=longest {
        if !is_whole(digits) {
            let lowest = if digits == 1 { 0 } else { lowest(digits) };
            parts.push(between(&lowest.max(least).to_string(), &highest(digits).min(most).to_string()));
        } else if let (true, [from, .., to]) = (whole.first() == Some(&digits), &whole[..]) {
            parts.push(format!("[1-9][0-9]{{{},{}}}", from - 1, to - 1));
        } else if whole.len() == 1 {
            parts.push(between(&lowest(digits).to_string(), &highest(digits).to_string()));
        }
    }
    format!("({})", parts.join("|"))
}

/// A number between two bounds that have as many digits as each other.
fn between(least: &str, most: &str) -> String {
    let rest = least.len().saturating_sub(1);
    let any = |digits: usize| match digits {
        0 => String::new(),
        1 => "[0-9]".to_owned(),
        n => format!("[0-9]{{{n}}}"),
    };
    let one_of = |least: u8, most: u8| match most - least {
        0 => char::from(least).to_string(),
        _ => format!("[{}-{}]", char::from(least), char::from(most)),
    };
    let first_and_rest = |digits: &str| Some((digits.bytes().next()?, digits.get(1..)?.to_owned()));
    let (Some((from_digit, lower)), Some((to_digit, upper))) = (first_and_rest(least), first_and_rest(most)) else {
        return String::new();
    };
    if rest == 0 {
        return one_of(from_digit, to_digit);
    }
    if least == most {
        return least.to_owned();
    }
    let (is_lowest, is_highest) = (lower.bytes().all(|b| b == b'0'), upper.bytes().all(|b| b == b'9'));
    if from_digit == to_digit {
        return if is_lowest && is_highest {
            one_of(from_digit, to_digit) + &any(rest)
        } else {
            format!("{}({})", char::from(from_digit), between(&lower, &upper))
        };
    }
    let mut parts = Vec::new();
    let (mut from, mut to) = (from_digit, to_digit);
    if !is_lowest {
        parts.push(format!("{}({})", char::from(from_digit), between(&lower, &"9".repeat(rest))));
        from += 1;
    }
    let above = (!is_highest).then(|| format!("{}({})", char::from(to_digit), between(&"0".repeat(rest), &upper)));
    to -= u8::from(!is_highest);
    if from <= to {
        parts.push(one_of(from, to) + &any(rest));
    }
    parts.extend(above);
    parts.join("|")
}

/// A duration within bounds, in any of its units from `finest` on, without anchors.
fn times(least: Duration, most: Duration, finest: &str) -> String {
    let of_unit = |(unit, us): &(&str, u128)| {
        let (least, most) = (least.as_micros().div_ceil(*us), most.as_micros() / us);
        (least <= most).then(|| format!("{}{unit}", number(least, most.min(10_u128.pow(DIGITS as u32) - 1))))
    };
    let units = UNITS.iter().skip_while(|(unit, _)| *unit != finest);
    format!("({})", units.filter_map(of_unit).collect::<Vec<_>>().join("|"))
}

/// A pattern that must match the whole text.
pub fn whole(pattern: &str) -> String {
    format!("^{pattern}$")
}

/// A duration within bounds.
pub fn duration(least: Duration, most: Duration) -> String {
    times(least, most, "us")
}

/// A count in a period: `5/s`, `30/60s`. A unit without a number means one of it.
pub fn per_period(most: u128, least: Duration, longest: Duration, finest: &str) -> String {
    let alone = UNITS.iter().skip_while(|(unit, _)| *unit != finest);
    let alone = alone.filter(|(_, us)| (least.as_micros()..=longest.as_micros()).contains(us));
    let alone: Vec<&str> = alone.map(|(unit, _)| *unit).collect();
    format!("{}/({}|{})", number(1, most), alone.join("|"), times(least, longest, finest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_written_as_a_regular_expression() {
        for (least, most, is) in [
            (0, 9, "([0-9])"),
            (1, 366, "([1-9]|[1-9][0-9]|[1-2][0-9]{2}|3([0-5][0-9]|6([0-6])))"),
            (95, 105, "(9([5-9])|1(0([0-5])))"),
            (1, 1_000, "([1-9]|[1-9][0-9]{1,2}|1000)"),
        ] {
            assert_eq!(number(least, most), is);
        }
    }
}
