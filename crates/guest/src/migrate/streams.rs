//! Guests that QEMU moves in its own streams: how both sides are set, and what QEMU says of its copying.
//!
//! The settings are chosen at the destination, where both QEMUs are known: the source's by its description, the waiting
//! one by what it answers itself.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::mirrors::MirrorProgress;
use super::settings::{self, HELD, Settings, UNLIMITED, capabilities};
use super::source::PreSwitchover;
use super::{DestinationQemu, MigrateError, SourceQemu, command_deadline};
use crate::description::GuestDescription;
use crate::qmp::{QemuVersion, QmpError};
use crate::run_state::RunState;

/// QEMU is asked how far it is this often.
const LOOK: Duration = Duration::from_millis(100);
/// The longest downtime limit that QEMU takes, in milliseconds.
const DOWNTIME_MS_MAX: u64 = 2_000_000;
/// A limit that differs by less is not set anew, in milliseconds.
const DOWNTIME_MS_STEP: u64 = 10;
/// Where pages of zeros are looked for; QEMU 9.0 and later.
const ZERO_PAGES: &str = "zero-page-detection";

/// First version whose parallel channels and return path are used (docs/stream-mode.md): 7.2 lost guests that it moved
/// with the first, and with the second ended when its connection broke. Versions between have not been tried.
const MORE_THAN_ONE_WAY_FROM: QemuVersion = QemuVersion { major: 10, minor: 0, micro: 0 };

/// How the streams of two QEMUs are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Parallel (multifd) channels beside the main one; 0 for none.
    pub channels: u16,
    /// The destination answers the source.
    pub return_path: bool,
    /// The destination understands pages of zeros in parallel channels.
    pub zero_pages_in_channels: bool,
}

impl StreamOptions {
    /// What is used of up to `channels` and the return path, by the older of two versions and what `both` can.
    pub fn between(older: QemuVersion, channels: u16, both: impl Fn(&str) -> bool) -> StreamOptions {
        let more = older >= MORE_THAN_ONE_WAY_FROM;
        StreamOptions {
            channels: if more && both("multifd") { channels } else { 0 },
            return_path: more && both("return-path"),
            zero_pages_in_channels: false,
        }
    }
}

/// What the operator wants of the source's QEMU.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Longest downtime at which QEMU may stop the guest.
    pub downtime: Duration,
    /// Slow the guest down (auto-converge) if it writes too fast.
    pub throttle: bool,
}

/// What QEMU says of its copying.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamProgress {
    /// Passes after the first one.
    pub round: u32,
    /// All that is copied.
    pub total_bytes: u64,
    /// What is left of it now.
    pub remaining_bytes: u64,
    /// Pages of zeros so far.
    pub zero_bytes: u64,
    /// How fast the guest writes.
    pub dirty_bytes_per_s: u64,
    /// Expected downtime if it were stopped now.
    pub expected_downtime: Option<Duration>,
    /// Percent by which the guest is slowed down.
    pub throttle_percent: u8,
    pub disks: Option<MirrorProgress>,
}

impl StreamProgress {
    /// Reads an answer to `query-migrate`; none before QEMU counts.
    pub fn read(answer: &Value) -> Option<StreamProgress> {
        let ram = answer.get("ram")?;
        let number = |key: &str| ram.get(key).and_then(Value::as_u64).unwrap_or(0);
        let page = number("page-size").max(1);
        let syncs = u32::try_from(number("dirty-sync-count")).unwrap_or(u32::MAX);
        let throttle = answer.get("cpu-throttle-percentage").and_then(Value::as_u64).unwrap_or(0);
        Some(StreamProgress {
            round: syncs.saturating_sub(1),
            total_bytes: number("total"),
            remaining_bytes: number("remaining"),
            zero_bytes: number("duplicate").saturating_mul(page),
            dirty_bytes_per_s: number("dirty-pages-rate").saturating_mul(page),
            expected_downtime: answer
                .get("expected-downtime")
                .and_then(Value::as_u64)
                .map(Duration::from_millis),
            throttle_percent: u8::try_from(throttle).unwrap_or(u8::MAX),
            disks: None,
        })
    }
}

/// How QEMU copies RAM beside disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamRates {
    downtime_ms: u64,
    bytes_per_s: u64,
}

impl StreamRates {
    fn of(left_for_ram: Option<Duration>) -> StreamRates {
        let Some(left) = left_for_ram else { return StreamRates { downtime_ms: 1, bytes_per_s: HELD } };
        let left = u64::try_from(left.as_millis()).unwrap_or(DOWNTIME_MS_MAX).min(DOWNTIME_MS_MAX);
        // Of 0 older QEMUs make no limit at all.
        let downtime_ms = (left - left % DOWNTIME_MS_STEP).max(1);
        StreamRates { downtime_ms, bytes_per_s: UNLIMITED }
    }

    fn parameters(self) -> Value {
        json!({ "downtime-limit": self.downtime_ms, "max-bandwidth": self.bytes_per_s })
    }
}

impl SourceQemu {
    /// Sets capabilities and parameters for QEMU's own streams. Nothing moves yet.
    pub fn prepare_streams(
        &mut self,
        options: StreamOptions,
        limits: StreamLimits,
        deadline: Instant,
    ) -> Result<(), MigrateError> {
        self.check_at_rest(deadline)?;
        let known = self.qmp.execute("query-migrate-parameters", json!({}), deadline)?;
        let mut wanted = vec!["events", "pause-before-switchover"];
        wanted.extend(shared_capabilities(options));
        wanted.extend(limits.throttle.then_some("auto-converge"));
        let mut parameters = shared_parameters(options);
        let downtime = u64::try_from(limits.downtime.as_millis()).unwrap_or(DOWNTIME_MS_MAX);
        parameters.insert("max-bandwidth".into(), UNLIMITED.into());
        parameters.insert("downtime-limit".into(), downtime.min(DOWNTIME_MS_MAX).into());
        if options.channels > 0 && options.zero_pages_in_channels && known.get(ZERO_PAGES).is_some() {
            parameters.insert(ZERO_PAGES.into(), "multifd".into());
        }
        settings::set(&mut self.qmp, &wanted, Value::Object(parameters), deadline)
    }

    /// Waits until QEMU has stopped the guest and waits for us. It copies until then, for as long as `give_up`
    /// returns false.
    ///
    /// Where disks are copied, `report` returns how long the rest of RAM may take when the guest is stopped; none if
    /// QEMU must not stop it yet. A guest that writes nothing at all to its RAM is stopped all the same once that is
    /// over there: QEMU does not wait for an answer then.
    pub fn wait_streams_held(
        &mut self,
        give_up: &dyn Fn() -> bool,
        report: &mut dyn FnMut(StreamProgress) -> Option<Duration>,
    ) -> Result<PreSwitchover, MigrateError> {
        let mut set = None;
        let look_at = Cell::new(Instant::now());
        let mut until =
            |_: &mut SourceQemu| if give_up() { Err(MigrateError::GivenUp) } else { Ok(look_at.get()) };
        let mut asked = |qemu: &mut SourceQemu| {
            look_at.set(Instant::now() + LOOK);
            let answer = qemu.qmp.execute("query-migrate", json!({}), command_deadline())?;
            let disks = qemu.look_at_mirrors()?;
            let progress = StreamProgress::read(&answer).map(|read| StreamProgress { disks, ..read });
            if let Some(progress) = progress {
                let left = report(progress);
                let pace = StreamRates::of(left);
                if disks.is_some() && set != Some(pace) {
                    qemu.qmp.execute("migrate-set-parameters", pace.parameters(), command_deadline())?;
                    set = Some(pace);
                }
            }
            Ok(answer.get("status").and_then(Value::as_str).unwrap_or("none").to_owned())
        };
        self.wait_held(&mut until, &mut asked)
    }
}

impl DestinationQemu {
    /// Chooses how both QEMUs are set, from what both can, and sets this one. The announcement of the guest's addresses
    /// is put off as in direct mode.
    pub fn prepare_streams(
        &mut self,
        channels: u16,
        source: &GuestDescription,
        deadline: Instant,
    ) -> Result<StreamOptions, MigrateError> {
        let found = self.status(deadline)?;
        if found != RunState::InMigrate {
            return Err(MigrateError::RunState { found, wanted: RunState::InMigrate });
        }
        let ours = capabilities(&mut self.qmp, deadline)?;
        let both = |name: &str| {
            let theirs = &source.traits.capabilities;
            ours.iter().any(|(has, _)| has == name) && theirs.iter().any(|has| has == name)
        };
        let older = source.qemu.min(self.qmp.version());
        let parameters = self.qmp.execute("query-migrate-parameters", json!({}), deadline)?;
        let options = StreamOptions {
            zero_pages_in_channels: parameters.get(ZERO_PAGES).is_some(),
            ..StreamOptions::between(older, channels, both)
        };
        self.activates_late = source.is_running();
        let mut wanted = vec!["events"];
        wanted.extend(self.activates_late.then_some("late-block-activate"));
        wanted.extend(shared_capabilities(options));
        let mut parameters = shared_parameters(options);
        parameters.insert("announce-rounds".into(), 0.into());
        self.found = Some(Settings::read(&mut self.qmp, deadline)?);
        settings::set(&mut self.qmp, &wanted, Value::Object(parameters), deadline)?;
        Ok(options)
    }

    /// Waits until all streams were taken and the guest could run, for as long as `give_up` returns false. QEMU is not
    /// asked meanwhile: older ones answer late while their main thread waits for parallel channels. A state that does
    /// not fit ends the process.
    pub fn wait_streams_taken(&mut self, give_up: &dyn Fn() -> bool) -> Result<(), MigrateError> {
        loop {
            if give_up() {
                return Err(MigrateError::GivenUp);
            }
            match self.qmp.wait_event(|event| event.name == "MIGRATION", Instant::now() + LOOK) {
                Ok(event) if event.is_migration("completed") => {
                    self.wait_paused(command_deadline())?;
                    return self.close_exports(command_deadline());
                }
                Ok(event) if event.is_migration("failed") => return Err(self.failed(command_deadline())),
                Ok(_) | Err(QmpError::TimedOut { .. }) => {}
                Err(error) => return Err(super::destination::ended(error)),
            }
        }
    }
}

/// Capabilities that both sides must agree in.
fn shared_capabilities(options: StreamOptions) -> impl Iterator<Item = &'static str> {
    let multifd = (options.channels > 0).then_some("multifd");
    multifd.into_iter().chain(options.return_path.then_some("return-path"))
}

fn shared_parameters(options: StreamOptions) -> Map<String, Value> {
    let mut parameters = Map::new();
    if options.channels > 0 {
        parameters.insert("multifd-channels".into(), options.channels.into());
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_qemu_gets_one_connection_and_nothing_back() {
        let between = |major, can: fn(&str) -> bool| {
            StreamOptions::between(QemuVersion { major, minor: 0, micro: 0 }, 4, can)
        };
        assert_eq!(between(7, |_| true), StreamOptions::default());
        let all = StreamOptions { channels: 4, return_path: true, ..StreamOptions::default() };
        assert_eq!(between(10, |_| true), all);
        assert_eq!(between(10, |name| name == "multifd"), StreamOptions { return_path: false, ..all });
        assert_eq!(between(10, |name| name == "return-path"), StreamOptions { channels: 0, ..all });
    }

    #[test]
    fn progress_is_read_in_bytes_and_rounds() {
        let answer = json!({
            "status": "active", "expected-downtime": 300, "cpu-throttle-percentage": 20,
            "ram": {
                "total": 1 << 20, "remaining": 8192, "duplicate": 3, "page-size": 4096,
                "dirty-pages-rate": 2, "dirty-sync-count": 4
            }
        });
        let wanted = StreamProgress {
            round: 3,
            total_bytes: 1 << 20,
            remaining_bytes: 8192,
            zero_bytes: 12288,
            dirty_bytes_per_s: 8192,
            expected_downtime: Some(Duration::from_millis(300)),
            throttle_percent: 20,
            disks: None,
        };
        assert_eq!(StreamProgress::read(&answer), Some(wanted));
        assert_eq!(StreamProgress::read(&json!({ "status": "setup" })), None);
        assert_eq!(StreamProgress::read(&json!({ "ram": {} })), Some(StreamProgress::default()));
    }
}
