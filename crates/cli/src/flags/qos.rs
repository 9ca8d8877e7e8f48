//! The command line of `linerate qos`.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use linerate_fabric::qos::switch::System;

use crate::units;

#[derive(Debug, Subcommand)]
pub enum QosCommand {
    /// Show what would change on this host and others
    Plan(QosHostsFlags),
    /// Compare hosts with the intent; the exit code is 0 if every port is as it says
    Check(QosHostsFlags),
    /// Change this host's ports; all is put back unless it is confirmed in time
    Apply(QosApplyFlags),
    /// Write the switch's side as configuration text; needs no agent
    Switch(QosSwitchFlags),
    /// Write a Windows host's side as PowerShell; needs no agent
    Windows {
        /// The intent, a TOML file; - is standard input
        file: PathBuf,
    },
}

/// `linerate qos plan | check`
#[derive(Debug, Args)]
pub struct QosHostsFlags {
    /// The intent, a TOML file; - is standard input
    pub file: PathBuf,
    /// Other hosts to look at, by their agents
    #[arg(value_name = "HOST[:PORT]", value_parser = units::host)]
    pub hosts: Vec<String>,
    /// Look at inventories in this folder (*.json) instead; needs no agent
    #[arg(long, value_name = "DIR", conflicts_with = "hosts")]
    pub from: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct QosApplyFlags {
    /// The intent, a TOML file; - is standard input
    pub file: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put all back unless confirmed within this time, at most 1h; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "60s")]
    pub within: u32,
}

#[derive(Debug, Args)]
pub struct QosSwitchFlags {
    /// The intent, a TOML file; - is standard input
    pub file: PathBuf,
    /// Operating system of the switch
    #[arg(long, value_enum)]
    pub system: SystemName,
}

/// A switch system by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemName(pub System);

impl ValueEnum for SystemName {
    fn value_variants<'a>() -> &'a [SystemName] {
        const ALL: [SystemName; 4] = [
            SystemName(System::Nxos),
            SystemName(System::Eos),
            SystemName(System::Cumulus),
            SystemName(System::Sonic),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            System::Nxos => "Cisco NX-OS (Nexus 9000)",
            System::Eos => "Arista EOS",
            System::Cumulus => "NVIDIA Cumulus Linux 5 (NVUE)",
            System::Sonic => "SONiC, from 202111",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_that_is_written_can_be_named() {
        let named: Vec<System> = SystemName::value_variants().iter().map(|name| name.0).collect();
        assert_eq!(named, System::ALL);
        for name in SystemName::value_variants() {
            assert_eq!(SystemName::from_str(name.0.name(), false), Ok(*name));
        }
    }
}
