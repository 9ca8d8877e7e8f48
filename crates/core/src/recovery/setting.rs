//! A capability that an agent set in the QEMU of a domain of libvirt, and that is to be off again. As long as it is on,
//! the domain would be saved without its RAM: it is tried until that QEMU has taken it, or has ended.

use std::time::Duration;

use crate::Time;

/// How long the agent may wait for that QEMU within one try: libvirt's migration fails and lets it go.
pub const PUT_BACK_FOR: Duration = Duration::from_secs(30);
/// From a try that failed to the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What the agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingAction {
    /// Switch the capability off. Answered by [`SettingRecovery::tried`].
    PutBack,
    /// Write that it is off. The journal repeats that ([`super::UnwrittenEnds`]), so it is not answered.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On,
    Off,
    Closed,
}

/// The recovery of one setting: it is tried until it is off, then the record is closed.
#[derive(Clone, Debug)]
pub struct SettingRecovery {
    state: State,
    /// The action of the state is due then; none while it is in progress, and at the end.
    due: Option<Time>,
}

impl SettingRecovery {
    /// The capability may be on.
    pub fn new(now: Time) -> SettingRecovery {
        SettingRecovery { state: State::On, due: Some(now) }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<SettingAction> {
        self.due.take_if(|due| *due <= now)?;
        match self.state {
            State::On => Some(SettingAction::PutBack),
            State::Off => {
                self.state = State::Closed;
                Some(SettingAction::Close)
            }
            State::Closed => None,
        }
    }

    /// A try came to its end: whether the capability is off, or its QEMU has ended.
    pub fn tried(&mut self, now: Time, is_off: bool) {
        if self.state != State::On {
            return;
        }
        if is_off {
            (self.state, self.due) = (State::Off, Some(now));
        } else {
            self.due = Some(now + AGAIN_AFTER);
        }
    }

    /// When to look again; none at the end.
    pub fn timeout(&self) -> Option<Time> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_back_however_long_its_qemu_does_not_answer() {
        let mut now = Time::ZERO;
        let mut setting = SettingRecovery::new(now);
        for _ in 0..1000 {
            assert_eq!(setting.poll_action(now), Some(SettingAction::PutBack));
            assert_eq!(setting.poll_action(now), None, "one try at a time");
            now = now + PUT_BACK_FOR;
            setting.tried(now, false);
            assert_eq!(setting.poll_action(now), None, "not without a pause");
            assert_eq!(setting.timeout(), Some(now + AGAIN_AFTER));
            now = now + AGAIN_AFTER;
        }
        assert_eq!(setting.poll_action(now), Some(SettingAction::PutBack));
        setting.tried(now, true);
        assert_eq!(setting.poll_action(now), Some(SettingAction::Close));
        assert_eq!((setting.poll_action(now), setting.timeout()), (None, None));
    }

    #[test]
    fn the_record_is_closed_once_and_never_before_the_setting_is_off() {
        let mut setting = SettingRecovery::new(Time::ZERO);
        setting.tried(Time::ZERO, false);
        assert_eq!(setting.poll_action(Time::ZERO), None);
        let now = Time::ZERO + AGAIN_AFTER;
        assert_eq!(setting.poll_action(now), Some(SettingAction::PutBack));
        setting.tried(now, true);
        assert_eq!(setting.poll_action(now), Some(SettingAction::Close));
        setting.tried(now, false);
        assert_eq!((setting.poll_action(now), setting.timeout()), (None, None));
    }
}
