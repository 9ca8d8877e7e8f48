<#
.SYNOPSIS
Writes the inventory of a Windows host as JSON, for `linerate doctor --from DIR` (form: docs/inventory.md, version 1.0).

.DESCRIPTION
Needs PowerShell 5.1 or later and no rights beyond those to read network settings. What a host does not have is left out.
Generated values follow the documented form; the script has not been run on every Windows version: read the file before you rely on it.

.EXAMPLE
.\Get-LinerateInventory.ps1 | Set-Content -Encoding UTF8 survey\$env:COMPUTERNAME.json
#>
[CmdletBinding()]
param()

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
$notes = New-Object System.Collections.ArrayList

# What cannot be read is a note, never a failure.
function Read-Or([string]$About, [scriptblock]$What) {
    try { & $What } catch {
        [void]$notes.Add([ordered]@{ about = $About; what = $_.Exception.Message })
        $null
    }
}

function Remove-Unknown($Table) {
    $known = [ordered]@{}
    foreach ($key in $Table.Keys) {
        $value = $Table[$key]
        if ($null -ne $value -and -not ($value -is [array] -and $value.Count -eq 0)) { $known[$key] = $value }
    }
    $known
}

function Get-Addresses($Adapter) {
    $all = Read-Or "addresses of $($Adapter.Name)" {
        Get-NetIPAddress -InterfaceIndex $Adapter.ifIndex -ErrorAction SilentlyContinue
    }
    # Link-local IPv6 addresses carry a zone behind a percent sign.
    @($all | Where-Object { $_ } | ForEach-Object {
        [ordered]@{ ip = ($_.IPAddress -split '%')[0]; prefix = [int]$_.PrefixLength }
    })
}

function Get-Link($Adapter) {
    $speed = $null
    if ($Adapter.Status -eq 'Up' -and $Adapter.Speed) { $speed = [int64]($Adapter.Speed / 1000000) }
    $duplex = $null
    if ($null -ne $Adapter.FullDuplex) { $duplex = if ($Adapter.FullDuplex) { 'full' } else { 'half' } }
    $setting = Read-Or "speed setting of $($Adapter.Name)" {
        Get-NetAdapterAdvancedProperty -Name $Adapter.Name -RegistryKeyword '*SpeedDuplex' -ErrorAction SilentlyContinue
    }
    $auto = $null
    if ($setting) { $auto = (@($setting.RegistryValue)[0] -eq '0') }
    Remove-Unknown ([ordered]@{ speed_mbps = $speed; duplex = $duplex; autonegotiation = $auto })
}

function Get-Slot($Adapter) {
    $info = Read-Or "slot of $($Adapter.Name)" {
        Get-NetAdapterHardwareInfo -Name $Adapter.Name -ErrorAction SilentlyContinue
    }
    if (-not $info) { return $null }
    # Windows counts PCIe generations; the form wants megatransfers per second.
    $speeds = @{ 1 = 2500; 2 = 5000; 3 = 8000; 4 = 16000; 5 = 32000; 6 = 64000 }
    $running = $null
    if ($info.PciExpressCurrentLinkWidth -and $speeds.ContainsKey([int]$info.PciExpressCurrentLinkSpeedEncoded)) {
        $running = [ordered]@{
            speed_mts = $speeds[[int]$info.PciExpressCurrentLinkSpeedEncoded]
            width     = [int]$info.PciExpressCurrentLinkWidth
        }
    }
    Remove-Unknown ([ordered]@{
        address = ('{0:x4}:{1:x2}:{2:x2}.{3}' -f [int]$info.SegmentNumber, [int]$info.BusNumber, [int]$info.DeviceNumber, [int]$info.FunctionNumber)
        running = $running
    })
}

function Get-Queues($Adapter) {
    $rss = Read-Or "queues of $($Adapter.Name)" {
        Get-NetAdapterRss -Name $Adapter.Name -ErrorAction SilentlyContinue
    }
    if ($rss -and $rss.NumberOfReceiveQueues) { [ordered]@{ combined = [int]$rss.NumberOfReceiveQueues } }
}

function Get-Dcb($Adapter) {
    $qos = Read-Or "QoS of $($Adapter.Name)" {
        Get-NetAdapterQos -Name $Adapter.Name -ErrorAction SilentlyContinue
    }
    if (-not $qos -or -not $qos.Enabled) { return $null }
    $willing = Read-Or 'DCBX' { (Get-NetQosDcbxSetting).Willing }
    $lossless = Read-Or 'priority flow control' { @(Get-NetQosFlowControl | Where-Object Enabled | ForEach-Object { [int]$_.Priority }) }
    $pfc = [ordered]@{ lossless = @($lossless) }
    if ($null -ne $willing) { $pfc.willing = [bool]$willing }
    [ordered]@{ pfc = $pfc }
}

function Get-Port($Adapter, $Teams) {
    $team = $Teams | Where-Object { $_.Members -contains $Adapter.Name } | Select-Object -First 1
    $own = $Teams | Where-Object { $_.TeamNics -contains $Adapter.Name } | Select-Object -First 1
    $bond = $null
    if ($own) { $bond = [ordered]@{ mode = [string]$own.TeamingMode; hash = [string]$own.LoadBalancingAlgorithm } }
    $kind = if ($own) { 'team' } elseif ($Adapter.HardwareInterface) { 'physical' } else { 'other' }
    # The IP stack's MTU; the adapter's jumbo setting counts the Ethernet header.
    $mtu = Read-Or "MTU of $($Adapter.Name)" {
        (Get-NetIPInterface -InterfaceIndex $Adapter.ifIndex -AddressFamily IPv4 -ErrorAction SilentlyContinue).NlMtu
    }
    $vlan = $null
    if ($Adapter.VlanID) { $vlan = [int]$Adapter.VlanID }
    $mac = $null
    if ($Adapter.MacAddress) { $mac = ($Adapter.MacAddress -replace '-', ':').ToLowerInvariant() }
    Remove-Unknown ([ordered]@{
        name           = $Adapter.Name
        index          = [int]$Adapter.ifIndex
        kind           = $kind
        mac            = $mac
        up             = ($Adapter.AdminStatus -eq 'Up')
        carrier        = ($Adapter.Status -eq 'Up')
        mtu            = if ($mtu) { [int64]$mtu } else { $null }
        addresses      = @(Get-Addresses $Adapter)
        link           = Get-Link $Adapter
        driver         = $Adapter.DriverFileName
        driver_version = $Adapter.DriverVersionString
        queues         = Get-Queues $Adapter
        master         = if ($team) { $team.Name } else { $null }
        vlan           = $vlan
        bond           = $bond
        pcie           = Get-Slot $Adapter
        dcb            = Get-Dcb $Adapter
    })
}

function Get-Rdma {
    $all = Read-Or 'RDMA' { @(Get-NetAdapterRdma -ErrorAction Stop | Where-Object Enabled) }
    if ($null -eq $all) { return $null }
    @($all | ForEach-Object {
        [ordered]@{
            name  = $_.Name
            ports = @([ordered]@{ number = 1; port = $_.Name; state = if ($_.OperationalState) { 'ACTIVE' } else { 'DOWN' } })
        }
    })
}

$system = Read-Or 'operating system' { Get-CimInstance Win32_OperatingSystem }
$processors = Read-Or 'processors' { @(Get-CimInstance Win32_Processor) }
$plan = Read-Or 'power plan' {
    Get-CimInstance -Namespace root\cimv2\power -ClassName Win32_PowerPlan | Where-Object IsActive
}
$teams = @(Read-Or 'teams' { @(Get-NetLbfoTeam -ErrorAction SilentlyContinue) } | Where-Object { $_ })
$adapters = @(Read-Or 'adapters' { Get-NetAdapter } | Where-Object { $_ })
$secureBoot = Read-Or 'Secure Boot' { Confirm-SecureBootUEFI }

$cpu = [ordered]@{}
if ($processors) {
    $online = [int](($processors | Measure-Object NumberOfLogicalProcessors -Sum).Sum)
    $cpu.model = $processors[0].Name
    $cpu.online = $online
    $cpu.cores = [int](($processors | Measure-Object NumberOfCores -Sum).Sum)
    if ($plan) { $cpu.governors = @([ordered]@{ name = $plan.ElementName; cpus = $online }) }
}
$memory = [ordered]@{}
if ($system) {
    $memory.total_bytes = [int64]$system.TotalVisibleMemorySize * 1024
    $memory.available_bytes = [int64]$system.FreePhysicalMemory * 1024
}

$inventory = [ordered]@{
    schema          = [ordered]@{ major = 1; minor = 0 }
    host            = $env:COMPUTERNAME
    collected_unix_ms = [int64]([DateTime]::UtcNow - [DateTime]'1970-01-01').TotalMilliseconds
    collector       = 'Get-LinerateInventory.ps1'
    system          = Remove-Unknown ([ordered]@{
        os           = 'windows'
        distribution = if ($system) { $system.Caption } else { $null }
        kernel       = if ($system) { $system.Version } else { $null }
        secure_boot  = $secureBoot
    })
    cpu             = $cpu
    memory          = $memory
    ports           = @($adapters | ForEach-Object { Get-Port $_ $teams })
}
$rdma = Get-Rdma
if ($null -ne $rdma) { $inventory.rdma = @($rdma) }
if ($notes.Count) { $inventory.notes = @($notes) }
$inventory | ConvertTo-Json -Depth 8
