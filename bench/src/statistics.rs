//! Medians with their spread.

use serde::Serialize;

/// Median, smallest and largest of some figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub count: usize,
    pub min: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    pub max: f64,
}

/// None of no figures.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut figures: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    let (min, max) = (*figures.first()?, *figures.last()?);
    let high = *figures.get(middle)?;
    let median = if figures.len() % 2 == 1 { high } else { (*figures.get(middle - 1)? + high) / 2.0 };
    Some(Spread { count: figures.len(), min, median, max })
}

pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    spread(figures).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        let even = spread([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.count, even.min, even.median, even.max), (4, 1.0, 2.5, 4.0));
        assert_eq!(spread([f64::NAN]), None);
    }
}
