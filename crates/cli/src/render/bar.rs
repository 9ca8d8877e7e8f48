//! Bars, to half a character cell.

use super::paint::Paint;

/// A bar of `width` cells, `fraction` of it filled; the rest is drawn faintly.
pub fn bar(fraction: f64, width: usize, paint: Paint) -> String {
    let (full, rest) = cells(fraction, width);
    format!("{}{}", paint.cyan(&full), paint.dim(&"─".repeat(rest)))
}

/// Only the filled part, for tables.
pub fn mark(fraction: f64, width: usize, paint: Paint) -> String {
    let (full, _) = cells(fraction, width);
    paint.cyan(&full)
}

fn cells(fraction: f64, width: usize) -> (String, usize) {
    // A share that is not a number (of nothing) counts as none.
    let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
    let halves = (fraction * width as f64 * 2.0).floor() as usize;
    let mut full = "━".repeat(halves / 2);
    if halves % 2 == 1 {
        full.push('╸');
    }
    (full, width - halves.div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_it_is_asked_to_be_whatever_it_shows() {
        for fraction in [-1.0, 0.0, 0.05, 0.5, 0.55, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            assert_eq!(bar(fraction, 10, Paint::PLAIN).chars().count(), 10, "{fraction}");
        }
        assert_eq!(bar(0.55, 10, Paint::PLAIN), "━━━━━╸────");
        assert_eq!(mark(0.55, 10, Paint::PLAIN), "━━━━━╸");
    }
}
