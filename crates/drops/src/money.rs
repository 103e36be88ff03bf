//! Amounts of money, as people read them.

/// Currencies of ISO 4217 whose smallest unit is the unit itself.
const WITHOUT_DECIMALS: [&str; 16] = [
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF",
    "XPF",
];
/// Currencies of ISO 4217 whose unit has a thousand smallest units.
const THREE_DECIMALS: [&str; 7] = ["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"];

/// Formats an amount in the smallest unit of its currency: 999 and EUR as `9.99 EUR`, 999 and JPY as `999 JPY`.
pub fn money(amount: i64, currency: &str) -> String {
    let decimals = match currency {
        code if WITHOUT_DECIMALS.contains(&code) => 0,
        code if THREE_DECIMALS.contains(&code) => 3,
        _ => 2,
    };
    if decimals == 0 {
        return format!("{amount} {currency}");
    }
    let (sign, unit) = (if amount < 0 { "-" } else { "" }, 10_u64.pow(decimals));
    let (whole, rest) = (amount.unsigned_abs() / unit, amount.unsigned_abs() % unit);
    format!("{sign}{whole}.{rest:0width$} {currency}", width = decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_decimals_of_their_currency() {
        assert_eq!(money(999, "EUR"), "9.99 EUR");
        assert_eq!(money(5, "USD"), "0.05 USD");
        assert_eq!(money(-250, "EUR"), "-2.50 EUR");
        assert_eq!(money(999, "JPY"), "999 JPY");
        assert_eq!(money(1_005, "KWD"), "1.005 KWD");
        assert_eq!(money(i64::MIN, "EUR"), "-92233720368547758.08 EUR");
    }
}
