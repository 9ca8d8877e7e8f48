//! Which fault, when, and on which side.

use std::time::Duration;

use linerate_api::{Side, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The agent is killed and started again a second later.
    AgentKill,
    /// The guest's QEMU on that side is killed.
    QemuKill,
    /// All links are down for less than the limit.
    LinksShort,
    /// All links are down for longer than the limit.
    LinksLong,
    /// What a side sends on one link is lost without a sign.
    OneWay,
    /// The agent is stopped for less than the limit.
    FreezeShort,
    /// The agent is stopped for longer than the limit.
    FreezeLong,
    /// The disk of the journal is full until the migration is over.
    JournalFull,
    /// A guest of the same name is at the destination.
    NameTaken,
    /// The destination has not the memory.
    MemoryShort,
}

/// `--link-timeout` of these migrations.
pub const LIMIT: &str = "4s";
/// An outage shorter than that: the migration survives it.
pub const SHORT: Duration = Duration::from_secs(2);
/// An outage longer than that: the migration rolls back.
pub const LONG: Duration = Duration::from_secs(10);

impl Fault {
    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Fault::AgentKill => "agent-kill",
            Fault::QemuKill => "qemu-kill",
            Fault::LinksShort => "links-short",
            Fault::LinksLong => "links-long",
            Fault::OneWay => "one-way",
            Fault::FreezeShort => "freeze-short",
            Fault::FreezeLong => "freeze-long",
            Fault::JournalFull => "journal-full",
            Fault::NameTaken => "name-taken",
            Fault::MemoryShort => "memory-short",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub fault: Fault,
    /// In which step; none if it is so from the beginning.
    pub step: Option<Step>,
    /// On which side; none if it concerns both.
    pub side: Option<Side>,
}

const ON_A_SIDE: [Fault; 6] = [
    Fault::AgentKill,
    Fault::QemuKill,
    Fault::OneWay,
    Fault::FreezeShort,
    Fault::FreezeLong,
    Fault::JournalFull,
];

impl Case {
    /// All of them: faults from the beginning, then step by step.
    pub fn all() -> Vec<Case> {
        let mut cases: Vec<Case> = [Fault::NameTaken, Fault::MemoryShort]
            .map(|fault| Case { fault, step: None, side: Some(Side::Destination) })
            .to_vec();
        for step in Step::ALL.iter().copied().filter(|step| *step >= Step::Admit) {
            for fault in ON_A_SIDE {
                cases.extend(Side::ALL.iter().map(|side| Case {
                    fault,
                    step: Some(step),
                    side: Some(*side),
                }));
            }
            cases.extend([Fault::LinksShort, Fault::LinksLong].map(|fault| Case {
                fault,
                step: Some(step),
                side: None,
            }));
        }
        cases
    }

    /// `fault/step/side`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.fault.name(), self.step_name(), self.side_name())
    }

    /// The step's name without spaces.
    pub fn step_name(&self) -> String {
        self.step.map_or("start".to_owned(), |step| step.text().replace(' ', "-"))
    }

    pub fn side_name(&self) -> String {
        self.side.map_or("both".to_owned(), |side| side.text().to_owned())
    }

    /// The host of its side; the guest goes from host 0 to host 1.
    pub fn host(&self) -> usize {
        usize::from(self.side == Some(Side::Destination))
    }

    /// About how long the step takes here: the fault comes at a random instant of it.
    pub fn span(&self) -> Duration {
        let ms = match self.step {
            Some(Step::Prepare) => 300,
            Some(Step::Connect) => 100,
            Some(Step::Copy) => 1500,
            Some(Step::Blackout) => 25,
            Some(Step::CleanUp) => 20,
            _ => 5,
        };
        Duration::from_millis(ms)
    }
}
