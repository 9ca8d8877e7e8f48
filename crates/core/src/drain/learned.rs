//! What a drain has measured: what the links carry, what a destination takes, what one guest can be copied at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Time;
use crate::fleet::{GuestId, HostId};

/// A copy's goodput is used when it has lasted so long.
pub(super) const MEASURED_AFTER: Duration = Duration::from_millis(250);
/// More copies are judged when they have lasted so long.
const JUDGED_AFTER: Duration = Duration::from_millis(750);
/// A ceiling is believed so long: the load of others changes.
const BELIEVED: Duration = Duration::from_secs(60);
/// More copies are worth it if goodput rises by this part of what it would if only the copies limited it. It must rise
/// at least by [`WORTH_LEAST`]. If it rises by less, the links are full now.
const WORTH: f64 = 0.25;
const WORTH_LEAST: f64 = 0.05;
/// A guest that reaches less than this part of what the links carry is limited by something else.
pub(super) const REACHES: f64 = 0.9;

/// Copies that were begun beside others, to be judged together.
#[derive(Clone, Debug)]
struct Trial {
    begun: Vec<(GuestId, HostId)>,
    /// The copies that went on then.
    beside: Vec<GuestId>,
    total_before: f64,
    before: BTreeMap<HostId, f64>,
}

/// One copy, for judging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub guest: GuestId,
    pub host: HostId,
    pub since: Time,
    pub bytes_per_s: f64,
    pub finishing: bool,
    pub measured: bool,
}

/// Time to prepare a guest, in seconds, as long as none was prepared.
const PREPARE_S: f64 = 2.0;

/// Measured values.
#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    /// Ports of the source, bytes per second each.
    pub ports: Vec<f64>,
    carries: Option<(f64, Time)>,
    takes: BTreeMap<HostId, (f64, Time)>,
    /// What one guest reached where nothing else limited it.
    pub guest_limit: Option<f64>,
    /// Some copy's goodput is known: before that there is only what the ports say.
    pub has_measured: bool,
    trial: Option<Trial>,
    /// So many copies at once carried more than fewer did.
    proven: Option<(usize, Time)>,
    /// Time to prepare a guest, in seconds, once one was prepared.
    prepare_s: Option<f64>,
    /// Time from the order to copy to the first byte, in seconds.
    pub begin_s: f64,
}

impl Learned {
    pub fn new(ports: Vec<f64>, guest_limit: Option<f64>) -> Learned {
        Learned { ports, guest_limit, begin_s: 0.1, ..Learned::default() }
    }

    /// Bytes per second that the source's links carry: what its ports say, or less if that was measured lately.
    pub fn carries(&self, now: Time) -> f64 {
        let ports: f64 = self.ports.iter().sum();
        believed(self.carries.as_ref(), now).map_or(ports, |measured| measured.min(ports)).max(1.0)
    }

    /// Bytes per second that a destination takes; `links` is what the links there carry.
    pub fn takes(&self, host: HostId, links: f64, now: Time) -> f64 {
        believed(self.takes.get(&host), now).map_or(links, |measured| measured.min(links))
    }

    /// What the source's links carry and what this destination takes, as last measured, however long ago: for
    /// estimates.
    pub fn last(&self, host: HostId, links: f64) -> (f64, f64) {
        let carries = self.carries.map_or(f64::INFINITY, |(rate, _)| rate);
        let takes = self.takes.get(&host).map_or(f64::INFINITY, |(rate, _)| *rate);
        (carries.min(self.ports.iter().sum()).max(1.0), takes.min(links).max(1.0))
    }

    /// What an earlier drain measured of a destination. It is believed as long as what this one measures.
    pub fn remember(&mut self, host: HostId, bytes_per_s: f64, now: Time) {
        self.takes.insert(host, (bytes_per_s, now + BELIEVED));
    }

    /// What destinations take, where that was measured.
    pub fn measured_takes(&self) -> impl Iterator<Item = (HostId, f64)> {
        self.takes.iter().map(|(host, (rate, _))| (*host, *rate))
    }

    /// Bytes per second of all ports in the mask.
    pub fn of_ports(&self, mask: u64) -> f64 {
        self.ports.iter().take(64).enumerate().filter(|(n, _)| mask >> n & 1 == 1).map(|(_, rate)| rate).sum()
    }

    /// The source's ports changed: what was measured with the old ones is void.
    pub fn changed(&mut self, ports: Vec<f64>) {
        let (prepare_s, begin_s) = (self.prepare_s, self.begin_s);
        *self = Learned { prepare_s, begin_s, ..Learned::new(ports, self.guest_limit) };
    }

    /// The first sample of a copy that was ordered so long ago.
    pub fn began(&mut self, ordered: Duration, copied_bytes: u64, bytes_per_s: f64) {
        let begin_s = ordered.as_secs_f64() - copied_bytes as f64 / bytes_per_s.max(1.0);
        self.begin_s += 0.3 * (begin_s.clamp(0.0, 2.0) - self.begin_s);
    }

    /// A guest was prepared in this time. The first one counts wholly.
    pub fn prepared_in(&mut self, time: Duration) {
        let before = self.prepare_s.unwrap_or(time.as_secs_f64());
        self.prepare_s = Some(before + 0.3 * (time.as_secs_f64() - before));
    }

    /// Whether the time to prepare a guest is measured.
    pub fn has_prepared(&self) -> bool {
        self.prepare_s.is_some()
    }

    /// Time to prepare a guest, in seconds.
    pub fn prepare_s(&self) -> f64 {
        self.prepare_s.unwrap_or(PREPARE_S)
    }

    /// So many copies at once carry more than fewer.
    pub fn proven(&self, now: Time) -> usize {
        believed(self.proven.as_ref(), now).unwrap_or(0)
    }

    /// Whether one more copy may begin beside these. What the ports say may be wrong, and what a copy is limited by is
    /// not known from one copy: until it is judged whether more copies carry more, there are at most twice as many.
    pub fn may_begin(&self, copies: &[Copy], now: Time) -> bool {
        let going = copies.iter().filter(|copy| !copy.finishing);
        let (settled, fresh): (Vec<&Copy>, Vec<&Copy>) = going.partition(|copy| {
            copy.measured && !self.trial.as_ref().is_some_and(|trial| trial.has_begun(copy.guest))
        });
        let all = settled.len() + fresh.len();
        all == 0 || all < self.proven(now) || fresh.len() < settled.len()
    }

    /// `guest` is begun beside these copies.
    pub fn begun(&mut self, guest: GuestId, host: HostId, copies: &[Copy]) {
        if let Some(trial) = &mut self.trial {
            trial.begun.push((guest, host));
            return;
        }
        let going: Vec<&Copy> = copies.iter().filter(|copy| !copy.finishing).collect();
        if going.is_empty() || going.iter().any(|copy| !copy.measured) {
            return;
        }
        let mut before: BTreeMap<HostId, f64> = BTreeMap::new();
        for copy in &going {
            *before.entry(copy.host).or_default() += copy.bytes_per_s;
        }
        self.trial = Some(Trial {
            begun: vec![(guest, host)],
            beside: going.iter().map(|copy| copy.guest).collect(),
            total_before: before.values().sum(),
            before,
        });
    }

    /// Goodput was measured. Returns the limit of the guest `of`, if this shows one.
    pub fn measured(
        &mut self,
        of: GuestId,
        round: u32,
        links: f64,
        now: Time,
        copies: &[Copy],
    ) -> Option<f64> {
        self.judge(now, copies);
        self.has_measured |= copies.iter().any(|copy| copy.guest == of && copy.measured);
        let going: Vec<&Copy> = copies.iter().filter(|copy| !copy.finishing).collect();
        let total: f64 = going.iter().map(|copy| copy.bytes_per_s).sum();
        let copy = going.iter().find(|copy| copy.guest == of && copy.measured)?;
        let there: f64 =
            going.iter().filter(|other| other.host == copy.host).map(|other| other.bytes_per_s).sum();
        // Of a copy that was not measured it is only assumed what it has.
        let seen = |only: Option<HostId>| -> f64 {
            let counts = |copy: &&&Copy| copy.measured && only.is_none_or(|host| copy.host == host);
            going.iter().filter(counts).map(|copy| copy.bytes_per_s).sum()
        };
        if let Some((ceiling, _)) = &mut self.carries {
            *ceiling = ceiling.max(seen(None));
        }
        if let Some((ceiling, _)) = self.takes.get_mut(&copy.host) {
            *ceiling = ceiling.max(seen(Some(copy.host)));
        }
        self.guest_limit = self.guest_limit.map(|limit| limit.max(copy.bytes_per_s));
        let room = total < REACHES * self.carries(now) && there < REACHES * self.takes(copy.host, links, now);
        if round > 0 || !room || copies.len() > going.len() {
            return None;
        }
        self.guest_limit =
            Some(self.guest_limit.map_or(copy.bytes_per_s, |limit| limit.max(copy.bytes_per_s)));
        Some(copy.bytes_per_s)
    }

    /// Whether the copies that were begun beside others were worth it. If not, the sum is what the links carry, or the
    /// destination takes.
    fn judge(&mut self, now: Time, copies: &[Copy]) {
        let Some(trial) = self.trial.take() else { return };
        let going = |guest: &GuestId| copies.iter().find(|copy| copy.guest == *guest && !copy.finishing);
        let begun: Option<Vec<&Copy>> = trial.begun.iter().map(|(guest, _)| going(guest)).collect();
        let Some(begun) = begun.filter(|_| trial.beside.iter().all(|guest| going(guest).is_some())) else {
            return;
        };
        if begun.iter().any(|copy| !copy.measured || now - copy.since < JUDGED_AFTER) {
            self.trial = Some(trial);
            return;
        }
        let sum = |only: Option<HostId>| -> f64 {
            let counted = copies.iter().filter(|copy| only.is_none_or(|host| copy.host == host));
            counted.map(|copy| copy.bytes_per_s).sum()
        };
        let rise = (WORTH * trial.begun.len() as f64 / trial.beside.len().max(1) as f64).max(WORTH_LEAST);
        let mut worth = true;
        for host in trial.begun.iter().map(|(_, host)| *host).collect::<BTreeSet<_>>() {
            match trial.before.get(&host) {
                Some(before) if sum(Some(host)) < before * (1.0 + rise) => {
                    worth = false;
                    self.takes.insert(host, (sum(Some(host)).max(*before), now + BELIEVED));
                }
                None if sum(None) < trial.total_before * (1.0 + rise) => {
                    worth = false;
                    self.carries = Some((sum(None).max(trial.total_before), now + BELIEVED));
                }
                _ => {}
            }
        }
        if worth {
            self.proven = Some((copies.len().max(self.proven(now)), now + BELIEVED));
        }
    }
}

impl Trial {
    fn has_begun(&self, guest: GuestId) -> bool {
        self.begun.iter().any(|(begun, _)| *begun == guest)
    }
}

fn believed<T: std::marker::Copy>(value: Option<&(T, Time)>, now: Time) -> Option<T> {
    value.filter(|(_, until)| now < *until).map(|(value, _)| *value)
}
