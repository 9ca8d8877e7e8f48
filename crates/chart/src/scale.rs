//! Places of figures on an axis, and round figures to stand at it.

/// An axis from its first to its last figure.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// From 0 to the largest figure.
    pub fn linear(largest: f64, from: f64, to: f64) -> Scale {
        Scale { low: 0.0, high: if largest > 0.0 { largest } else { 1.0 }, logarithmic: false, from, to }
    }

    /// Between two figures above 0, in powers.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let low = low.max(f64::MIN_POSITIVE);
        Scale { low, high: high.max(low * 1.001), logarithmic: true, from, to }
    }

    /// Where a figure is drawn.
    pub fn place(&self, figure: f64) -> f64 {
        let share = if self.logarithmic {
            (figure.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            figure / self.high
        };
        self.from + (self.to - self.from) * share
    }

    /// Round figures within it: 1, 2 and 5 times powers of ten, or powers of ten alone if it is logarithmic.
    pub fn marks(&self) -> Vec<f64> {
        if self.logarithmic {
            let first = self.low.log10().ceil() as i32;
            let last = self.high.log10().floor() as i32;
            return (first..=last).map(|power| 10f64.powi(power)).collect();
        }
        let rough = self.high / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|one| one * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let count = (self.high / step + 1e-9).floor() as u32;
        (0..=count).map(|number| f64::from(number) * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_within() {
        assert_eq!(Scale::linear(9.4, 0.0, 1.0).marks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale::linear(1250.0, 0.0, 1.0).marks(), [0.0, 500.0, 1000.0]);
        assert_eq!(Scale::logarithmic(7.0, 20_000.0, 0.0, 1.0).marks(), [10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn places_go_from_end_to_end() {
        let linear = Scale::linear(10.0, 100.0, 0.0);
        assert_eq!([linear.place(0.0), linear.place(5.0), linear.place(10.0)], [100.0, 50.0, 0.0]);
        let powers = Scale::logarithmic(1.0, 100.0, 0.0, 10.0);
        assert_eq!([powers.place(1.0), powers.place(10.0), powers.place(100.0)], [0.0, 5.0, 10.0]);
        assert_eq!(Scale::linear(0.0, 0.0, 1.0).place(0.0), 0.0);
    }
}
