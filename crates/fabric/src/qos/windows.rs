//! A Windows host's side of an intent, as PowerShell. Tested on no Windows host: its first lines say so.
//!
//! Hyper-V moves machines over SMB (port 445, with SMB Direct over RDMA) or its own TCP protocol (port 6600); both get
//! the migrations' priority. Storage is iSCSI; its DSCP marks it.

use thiserror::Error;

use super::intent::{Class, Intent, Roce};
use super::switch::head;

/// Why there is no text.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum WindowsError {
    #[error("the intent has no `windows_adapters`: name them as Get-NetAdapter does")]
    NoAdapters,
}

/// Writes a PowerShell script that sets the adapters of the intent.
pub fn write(intent: &Intent) -> Result<String, WindowsError> {
    if intent.windows_adapters.is_empty() {
        return Err(WindowsError::NoAdapters);
    }
    let notes = [
        "Run as administrator. It changes adapters at once: do not run it over a connection that uses them.",
        "Storage over SMB Direct has the same port as live migration over SMB, and so the same priority.",
    ];
    let parts = [
        head("#", "Windows Server (PowerShell)", &notes),
        "$ErrorActionPreference = 'Stop'\n".to_owned(),
        begin(),
        policies(intent),
        classes(intent),
        flow_control(intent),
        adapters(intent),
    ];
    Ok(parts.join("\n"))
}

/// What an earlier run made goes first, so that the script can be run again.
fn begin() -> String {
    [
        "Install-WindowsFeature -Name Data-Center-Bridging | Out-Null",
        "Set-NetQosDcbxSetting -Willing $false -Confirm:$false",
        "Get-NetQosPolicy | Where-Object Name -like 'Linerate*' | Remove-NetQosPolicy -Confirm:$false",
        "Get-NetQosTrafficClass | Where-Object Name -like 'Linerate*' | Remove-NetQosTrafficClass -Confirm:$false",
        "",
    ]
    .join("\n")
}

fn title(class: &Class) -> String {
    match class.name {
        "migration" => "LinerateMigration".to_owned(),
        _ => "LinerateStorage".to_owned(),
    }
}

fn policies(intent: &Intent) -> String {
    let mut text = String::new();
    let (migration, priority) = (title(&intent.migration), intent.migration.priority);
    let mark = intent.migration.dscp.map(|dscp| format!(" -DSCPAction {dscp}")).unwrap_or_default();
    if intent.roce != Roce::None {
        text += &format!(
            "New-NetQosPolicy -Name '{migration}Direct' -NetDirectPortMatchCondition 445 -PriorityValue8021Action {priority}\n"
        );
    }
    for (name, what) in [("Smb", "-IPDstPortMatchCondition 445"), ("Tcp", "-LiveMigration")] {
        text += &format!(
            "New-NetQosPolicy -Name '{migration}{name}' {what} -PriorityValue8021Action {priority}{mark}\n"
        );
    }
    if let Some(storage) = &intent.storage {
        let mark = storage.dscp.map(|dscp| format!(" -DSCPAction {dscp}")).unwrap_or_default();
        text += &format!(
            "New-NetQosPolicy -Name '{}' -iSCSI -PriorityValue8021Action {}{mark}\n",
            title(storage),
            storage.priority
        );
    }
    text
}

/// What the classes leave is the share of everything else; Windows keeps that in a class of its own.
fn classes(intent: &Intent) -> String {
    let class = |class: &Class| {
        format!(
            "New-NetQosTrafficClass -Name '{}' -Priority {} -BandwidthPercentage {} -Algorithm ETS\n",
            title(class),
            class.priority,
            class.share_percent
        )
    };
    intent.classes().map(class).collect()
}

fn flow_control(intent: &Intent) -> String {
    let lossless = intent.lossless();
    let list = |on: bool| {
        let of = (0u8..8).filter(|priority| lossless.contains(priority) == on);
        of.map(|priority| priority.to_string()).collect::<Vec<_>>().join(",")
    };
    let mut text = format!("Disable-NetQosFlowControl -Priority {}\n", list(false));
    if !lossless.is_empty() {
        text += &format!("Enable-NetQosFlowControl -Priority {}\n", list(true));
    }
    text
}

fn adapters(intent: &Intent) -> String {
    let names: Vec<String> = intent.windows_adapters.iter().map(|name| format!("'{name}'")).collect();
    let technology = match intent.roce {
        Roce::None => None,
        Roce::V1 => Some(3),
        Roce::V2 => Some(4),
    };
    let mut text = format!("foreach ($name in {}) {{\n", names.join(", "));
    text += "    Enable-NetAdapterQos -Name $name\n";
    if !intent.lossless().is_empty() {
        text += "    Set-NetAdapterAdvancedProperty -Name $name -RegistryKeyword '*FlowControl' -RegistryValue 0\n";
    }
    if let Some(number) = technology {
        text += &format!(
            "    Set-NetAdapterAdvancedProperty -Name $name -RegistryKeyword '*NetworkDirectTechnology' -RegistryValue {number}\n"
        );
        text += "    Enable-NetAdapterRdma -Name $name\n";
    }
    text + "}\nGet-NetAdapterQos\n"
}
