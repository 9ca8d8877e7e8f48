//! Reads quantities as people write them: bit rates, durations, networks and hosts.

use std::net::IpAddr;
use std::time::Duration;

use linerate_api::{TunnelAddressError, TunnelPair};

/// Why a value of a flag cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with a number.
    #[error("it has to begin with a number")]
    NoNumber,
    /// There is a number without unit where one is needed.
    #[error("a unit is missing; write for example {0}")]
    NoUnit(&'static str),
    /// The unit is not known here.
    #[error("`{0}` is no unit known here; write for example {1}")]
    UnknownUnit(String, &'static str),
    /// Zero or too much.
    #[error("it has to be {0}")]
    OutOfRange(String),
    #[error("a network is written ADDRESS/PREFIX, such as 10.0.1.0/24 or fd00:1::/64")]
    NotANetwork,
    /// Not `HOST` or `HOST:PORT`.
    #[error("a host is written HOST or HOST:PORT, such as beta, beta:7979 or [fd00:1::2]:7979")]
    NotAHost,
    /// Nothing that ssh takes as a host.
    #[error("a host for ssh is written [USER@]HOST, such as root@beta, or as a name of ssh's configuration")]
    NotATarget,
    /// A list of names has an empty one.
    #[error("a name is missing: write GUEST,GUEST")]
    NoName,
    #[error("a pair is written LISTEN=CONNECT, such as unix:/run/a.sock=unix:/run/b.sock")]
    NotAPair,
    /// The address of a socket cannot be read.
    #[error(transparent)]
    NotASocket(#[from] TunnelAddressError),
    /// None of the words that the flag takes.
    #[error("it has to be {0}")]
    NotAChoice(&'static str),
}

const RATES: &str = "10G or 2.5Gbit (bits per second) or 300MiB/s (bytes per second)";
const DURATIONS: &str = "300ms, 30s or 2min";

/// Two sockets of a tunnel.
pub fn tunnel_pair(text: &str) -> Result<TunnelPair, UnitError> {
    let places = text.match_indices("=unix:").chain(text.match_indices("=tcp:")).map(|(at, _)| at);
    let at = places.max().ok_or(UnitError::NotAPair)?;
    let (listen, connect) = text.split_at(at);
    let socket = |text: &str| text.parse().map_err(UnitError::NotASocket);
    Ok(TunnelPair {
        listen: socket(listen)?,
        connect: socket(connect.trim_start_matches('='))?,
        waits: false,
        drives: false,
    })
}

/// Splits a number from its unit.
fn number(text: &str) -> Result<(f64, &str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let value: f64 = digits.parse().map_err(|_| UnitError::NoNumber)?;
    Ok((value, unit.trim()))
}

/// A rate in bytes per second. Like iperf3 and `tc`, a bare `K`, `M`, `G` or `T` means powers of ten of *bits* per
/// second; so do `Gb`, `Gbit`, `Gbps`, `Gb/s`. Bytes are a capital `B`: `MB/s`, `MiB/s`. A number alone is refused.
pub fn rate(text: &str) -> Result<u64, UnitError> {
    let (value, unit) = number(text)?;
    let unknown = || UnitError::UnknownUnit(unit.to_owned(), RATES);
    let prefix = unit.chars().next().ok_or(UnitError::NoUnit(RATES))?;
    let power = match prefix.to_ascii_uppercase() {
        'K' => 1,
        'M' => 2,
        'G' => 3,
        'T' => 4,
        _ => return Err(unknown()),
    };
    let bytes_each = match unit.get(prefix.len_utf8()..).unwrap_or_default() {
        "" | "b" | "bit" | "bit/s" | "bits" | "bits/s" | "b/s" | "bps" => 1000f64.powi(power) / 8.0,
        "B" | "B/s" | "Bps" => 1000f64.powi(power),
        "i" | "iB" | "iB/s" => 1024f64.powi(power),
        _ => return Err(unknown()),
    };
    let bytes = value * bytes_each;
    if !(1.0..=1e15).contains(&bytes) {
        return Err(UnitError::OutOfRange("more than nothing and less than a petabyte per second".into()));
    }
    Ok(bytes as u64)
}

/// A duration; without a unit it is `bare` (milliseconds or seconds).
fn duration(text: &str, bare: Duration) -> Result<Duration, UnitError> {
    let (value, unit) = number(text)?;
    let each = match unit {
        "" => bare.as_secs_f64(),
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other => return Err(UnitError::UnknownUnit(other.to_owned(), DURATIONS)),
    };
    Duration::try_from_secs_f64(value * each)
        .map_err(|_| UnitError::OutOfRange("a length of time that fits a lifetime".into()))
}

/// A blackout budget in milliseconds, 1 to 60 000; a bare number is milliseconds.
pub fn blackout_ms(text: &str) -> Result<u32, UnitError> {
    let duration = duration(text, Duration::from_millis(1))?;
    match u32::try_from(duration.as_millis()) {
        Ok(ms @ 1..=60_000) => Ok(ms),
        _ => Err(UnitError::OutOfRange("between 1ms and 60s".into())),
    }
}

/// A time-out in seconds, 1 to 86 400; a bare number is seconds.
pub fn timeout_s(text: &str) -> Result<u32, UnitError> {
    let duration = duration(text, Duration::from_secs(1))?;
    match u32::try_from(duration.as_secs()) {
        Ok(seconds @ 1..=86_400) => Ok(seconds),
        _ => Err(UnitError::OutOfRange("between 1s and 24h".into())),
    }
}

/// How long ago, in milliseconds; a bare number is seconds.
pub fn age_ms(text: &str) -> Result<u64, UnitError> {
    let days = text.trim().strip_suffix('d').map(|days| format!("{days}h"));
    let times = if days.is_some() { 24 } else { 1 };
    let each = duration(days.as_deref().unwrap_or(text), Duration::from_secs(1))?;
    let whole = each.checked_mul(times).map(|age| age.as_millis());
    whole
        .and_then(|ms| u64::try_from(ms).ok())
        .ok_or_else(|| UnitError::OutOfRange("a length of time that fits a lifetime".into()))
}

/// How long a measurement takes, in milliseconds, 1 ms to 300 s; a bare number is seconds.
pub fn bench_ms(text: &str) -> Result<u32, UnitError> {
    let duration = duration(text, Duration::from_secs(1))?;
    match u32::try_from(duration.as_millis()) {
        Ok(ms @ 1..=300_000) => Ok(ms),
        _ => Err(UnitError::OutOfRange("between 1ms and 300s".into())),
    }
}

/// Size of a message in bytes, at most 4 MiB; `K` and `M` are powers of 1024.
pub fn size(text: &str) -> Result<u32, UnitError> {
    let (value, unit) = number(text)?;
    let each = match unit {
        "" | "B" => 1.0,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1_048_576.0,
        other => return Err(UnitError::UnknownUnit(other.to_owned(), "4, 64KiB or 4MiB")),
    };
    let bytes = value * each;
    if bytes > 4_194_304.0 {
        return Err(UnitError::OutOfRange("at most 4 MiB".into()));
    }
    Ok(bytes as u32)
}

/// Speed of a port in megabits per second, `auto` is 0: 10G, 25G, 2.5G, 1000M.
pub fn port_speed_mbps(text: &str) -> Result<u32, UnitError> {
    const SPEEDS: &str = "auto, 1000M, 2.5G, 10G, 25G";
    if text == "auto" {
        return Ok(0);
    }
    let (value, unit) = number(text)?;
    let each = match unit {
        "M" => 1.0,
        "G" => 1000.0,
        "" => return Err(UnitError::NoUnit(SPEEDS)),
        other => return Err(UnitError::UnknownUnit(other.to_owned(), SPEEDS)),
    };
    let mbps = value * each;
    if !(10.0..=1_600_000.0).contains(&mbps) {
        return Err(UnitError::OutOfRange("between 10M and 1600G".into()));
    }
    Ok(mbps as u32)
}

pub fn on_off(text: &str) -> Result<bool, UnitError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(UnitError::NotAChoice("on or off")),
    }
}

/// A network, as it was written.
pub fn network(text: &str) -> Result<String, UnitError> {
    let (address, prefix) = text.split_once('/').ok_or(UnitError::NotANetwork)?;
    let address: IpAddr = address.parse().map_err(|_| UnitError::NotANetwork)?;
    let prefix: u8 = prefix.parse().map_err(|_| UnitError::NotANetwork)?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if prefix > bits {
        return Err(UnitError::OutOfRange(format!("a prefix of at most {bits} bits")));
    }
    Ok(text.to_owned())
}

/// `HOST` or `HOST:PORT`, as it was written.
pub fn host(text: &str) -> Result<String, UnitError> {
    let is_address = text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !is_address => (name, Some(port)),
        _ => (text, None),
    };
    let port_is_good = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let name_is_good =
        !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    if port_is_good && name_is_good { Ok(text.to_owned()) } else { Err(UnitError::NotAHost) }
}

/// `[USER@]HOST`, or a name of ssh's configuration.
pub fn ssh_target(text: &str) -> Result<String, UnitError> {
    let is_good = !text.is_empty()
        && !text.starts_with('-')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    if is_good { Ok(text.to_owned()) } else { Err(UnitError::NotATarget) }
}

/// Names of guests, with commas between them.
pub fn names(text: &str) -> Result<Vec<String>, UnitError> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) { Err(UnitError::NoName) } else { Ok(names) }
}

/// A path to a UNIX socket.
pub fn socket_path(text: &str) -> Result<String, UnitError> {
    format!("unix:{text}").parse::<linerate_api::TunnelAddress>()?;
    Ok(text.to_owned())
}

/// A way to carry guest RAM.
pub fn transport(text: &str) -> Result<linerate_api::Transport, UnitError> {
    match text {
        "auto" => Ok(linerate_api::Transport::Auto),
        "tcp" => Ok(linerate_api::Transport::Tcp),
        "rdma" => Ok(linerate_api::Transport::Rdma),
        _ => Err(UnitError::NotAChoice("auto, tcp or rdma")),
    }
}

/// How guest RAM is moved.
pub fn mode(text: &str) -> Result<linerate_api::ModeChoice, UnitError> {
    match text {
        "auto" => Ok(linerate_api::ModeChoice::Auto),
        "direct" => Ok(linerate_api::ModeChoice::Direct),
        "stream" => Ok(linerate_api::ModeChoice::Stream),
        _ => Err(UnitError::NotAChoice("auto, direct or stream")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_of_ports() {
        for (text, mbps) in [("auto", 0), ("1000M", 1000), ("2.5G", 2500), ("25G", 25_000)] {
            assert_eq!(port_speed_mbps(text), Ok(mbps), "{text}");
        }
        for text in ["", "10", "10T", "1M", "fast"] {
            assert!(port_speed_mbps(text).is_err(), "{text}");
        }
        assert_eq!((on_off("on"), on_off("off")), (Ok(true), Ok(false)));
        assert!(on_off("yes").is_err());
    }

    #[test]
    fn rates_are_bits_unless_they_say_bytes() {
        for (text, bytes) in [
            ("1G", 125_000_000),
            ("1g", 125_000_000),
            ("500M", 62_500_000),
            ("2.5Gbit", 312_500_000),
            ("25 Gb/s", 3_125_000_000),
            ("10Gbps", 1_250_000_000),
            ("100MB/s", 100_000_000),
            ("300MiB/s", 314_572_800),
            ("1GiB", 1 << 30),
            ("8K", 1000),
        ] {
            assert_eq!(rate(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn rates_that_could_mean_two_things_or_nothing_are_refused() {
        assert_eq!(rate("1000"), Err(UnitError::NoUnit(RATES)));
        assert_eq!(rate("fast"), Err(UnitError::NoNumber));
        assert_eq!(rate(""), Err(UnitError::NoNumber));
        assert_eq!(rate("1.2.3G"), Err(UnitError::NoNumber));
        assert_eq!(rate("-1G"), Err(UnitError::NoNumber));
        assert_eq!(rate("1Gbyte"), Err(UnitError::UnknownUnit("Gbyte".into(), RATES)));
        assert_eq!(rate("1µ"), Err(UnitError::UnknownUnit("µ".into(), RATES)));
        assert!(matches!(rate("0G"), Err(UnitError::OutOfRange(_))));
        assert!(matches!(rate("99999999T"), Err(UnitError::OutOfRange(_))));
    }

    #[test]
    fn durations_take_a_unit_or_the_usual_one() {
        assert_eq!(blackout_ms("300"), Ok(300));
        assert_eq!(blackout_ms("300ms"), Ok(300));
        assert_eq!(blackout_ms("0.5s"), Ok(500));
        assert!(matches!(blackout_ms("0"), Err(UnitError::OutOfRange(_))));
        assert!(matches!(blackout_ms("2h"), Err(UnitError::OutOfRange(_))));
        assert_eq!(timeout_s("30"), Ok(30));
        assert_eq!(timeout_s("2min"), Ok(120));
        assert!(matches!(timeout_s("1ms"), Err(UnitError::OutOfRange(_))));
        assert_eq!(timeout_s("30 parsecs"), Err(UnitError::UnknownUnit("parsecs".into(), DURATIONS)));
    }

    #[test]
    fn sizes_of_messages_and_times_of_measurements() {
        assert_eq!(
            [size("0"), size("4"), size("64KiB"), size("4M")],
            [Ok(0), Ok(4), Ok(65_536), Ok(4 << 20)]
        );
        assert!(
            matches!(size("5MiB"), Err(UnitError::OutOfRange(_)))
                && size("4kb").is_err()
                && size("-1").is_err()
        );
        assert_eq!([bench_ms("5"), bench_ms("250ms")], [Ok(5000), Ok(250)]);
        assert!(bench_ms("0").is_err() && bench_ms("301").is_err());
    }

    #[test]
    fn networks_and_hosts() {
        assert!(network("10.0.1.0/24").is_ok() && network("fd00:1::/64").is_ok());
        assert!(network("10.0.1.0").is_err() && network("eth0/24").is_err());
        assert!(matches!(network("10.0.1.0/33"), Err(UnitError::OutOfRange(_))));
        for good in ["beta", "beta.example:7979", "10.0.0.2", "10.0.0.2:7979", "fd00::2", "[fd00::2]:7979"] {
            assert!(host(good).is_ok(), "{good}");
        }
        for bad in ["", ":7979", "beta:", "beta:x", "beta:0", "beta:70000", "be ta", "tcp://beta:1"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}
