//! Quantities for reading: three significant digits, the unit that fits.

/// A figure with three significant digits.
pub fn three(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// Divides by `base` until what is shown is below it.
fn scaled(value: u64, base: f64, units: &[&str]) -> String {
    let mut value = value as f64;
    let mut units = units.iter().peekable();
    let mut unit = "";
    let mut divided = false;
    while let Some(next) = units.next() {
        unit = next;
        if value < base - 0.5 || units.peek().is_none() {
            break;
        }
        value /= base;
        divided = true;
    }
    if divided { format!("{} {unit}", three(value)) } else { format!("{value:.0} {unit}") }
}

/// Bytes, in powers of 1024.
pub fn bytes(value: u64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Bytes per second as bits per second, in powers of ten: what ports are rated in.
pub fn bit_rate(bytes_per_s: u64) -> String {
    scaled(bytes_per_s.saturating_mul(8), 1000.0, &["b/s", "Kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// A port's speed: `25G`, `2.5G`, `100M`; nothing if it is not known.
pub fn port_speed(mbps: u32) -> String {
    match mbps {
        0 => String::new(),
        1..1000 => format!("{mbps}M"),
        _ if mbps.is_multiple_of(1000) => format!("{}G", mbps / 1000),
        _ => format!("{:.1}G", f64::from(mbps) / 1000.0),
    }
}

/// A length of time.
pub fn time_us(us: u64) -> String {
    if us < 1000 {
        return format!("{us} µs");
    }
    let ms = us as f64 / 1e3;
    if ms < 999.5 {
        return format!("{} ms", three(ms));
    }
    let seconds = us as f64 / 1e6;
    if seconds < 59.95 {
        return format!("{} s", three(seconds));
    }
    let seconds = (us + 500_000) / 1_000_000;
    if seconds < 3600 {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    } else {
        format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60)
    }
}

/// A clock that ticks: tenths of a second, then minutes.
pub fn clock_us(us: u64) -> String {
    if us < 60_000_000 {
        format!("{:.1} s", (us / 100_000) as f64 / 10.0)
    } else {
        time_us(us / 1_000_000 * 1_000_000)
    }
}

/// `part` of `whole` in percent; none of nothing is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Text from elsewhere without what would steer a terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_and_the_unit_that_fits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536 << 20, "1.50 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn rates_are_in_bits() {
        assert_eq!(bit_rate(612_500_000), "4.90 Gb/s");
        assert_eq!(bit_rate(0), "0 b/s");
        assert_eq!(bit_rate(124_999_999), "1.00 Gb/s");
        assert_eq!([0, 100, 2500, 25_000].map(port_speed), ["", "100M", "2.5G", "25G"]);
    }

    #[test]
    fn times_never_round_into_a_unit_that_is_too_small() {
        for (us, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (8_400, "8.40 ms"),
            (999_600, "1.00 s"),
            (59_960_000, "1 min 00 s"),
            (3_599_600_000, "1 h 00 min"),
        ] {
            assert_eq!(time_us(us), text);
        }
        assert_eq!(clock_us(4_260_000), "4.2 s");
        assert_eq!(clock_us(61_999_999), "1 min 01 s");
    }

    #[test]
    fn text_from_elsewhere_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\n"), "a [2Jb ");
    }
}
