//! Lists that messages carry: regions and endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{Endpoint, Extent, RegionInfo, Run};
use crate::codec::{Reader, Writer};
use crate::error::DecodeError;
use crate::frame::check_run;

/// Most regions in one message.
pub const REGIONS_MAX: usize = 64;
/// Most bytes of a region's name.
pub const REGION_NAME_BYTES_MAX: usize = 255;
/// Most endpoints in one message.
pub const ENDPOINTS_MAX: usize = 256;
/// Most bytes of an interface's name.
pub const INTERFACE_BYTES_MAX: usize = 64;

/// Most touched runs in one message; a destination with more joins neighbours.
pub const TOUCHED_MAX: usize = 1024;

/// A touched run: u16 region, u64 offset, u64 length.
const TOUCHED_BYTES: usize = 18;
/// A region without a name: u16 id, u64 size, u16 length.
const REGION_BYTES_MIN: usize = 12;
/// An IPv4 endpoint on an interface without a name.
const ENDPOINT_BYTES_MIN: usize = 26;

const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;

pub(super) fn read_regions(reader: &mut Reader<'_>) -> Result<Vec<RegionInfo>, DecodeError> {
    let count = reader.count("regions", REGIONS_MAX, REGION_BYTES_MIN)?;
    (0..count).map(|_| read_region(reader)).collect()
}

fn read_region(reader: &mut Reader<'_>) -> Result<RegionInfo, DecodeError> {
    let id = reader.u16("region id")?;
    let size = reader.u64("region size")?;
    let name = reader.short_text("region name", REGION_NAME_BYTES_MAX)?;
    Ok(RegionInfo { id, name, size })
}

pub(super) fn write_regions(regions: &[RegionInfo], writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    writer.count("regions", regions.len(), REGIONS_MAX)?;
    regions.iter().try_for_each(|region| {
        writer.u16(region.id);
        writer.u64(region.size);
        writer.short_text("region name", &region.name, REGION_NAME_BYTES_MAX)
    })
}

pub(super) fn read_touched(reader: &mut Reader<'_>) -> Result<Vec<Extent>, DecodeError> {
    let count = reader.count("touched runs", TOUCHED_MAX, TOUCHED_BYTES)?;
    (0..count).map(|_| read_touched_run(reader)).collect()
}

fn read_touched_run(reader: &mut Reader<'_>) -> Result<Extent, DecodeError> {
    let region = reader.u16("touched region")?;
    let run = Run { offset: reader.u64("touched offset")?, length: reader.u64("touched length")? };
    check_run(run)?;
    Ok(Extent { region, run })
}

pub(super) fn write_touched(touched: &[Extent], writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    writer.count("touched runs", touched.len(), TOUCHED_MAX)?;
    touched.iter().try_for_each(|touched| {
        check_run(touched.run)?;
        writer.u16(touched.region);
        writer.u64(touched.run.offset);
        writer.u64(touched.run.length);
        Ok(())
    })
}

pub(super) fn read_endpoints(reader: &mut Reader<'_>) -> Result<Vec<Endpoint>, DecodeError> {
    let count = reader.count("endpoints", ENDPOINTS_MAX, ENDPOINT_BYTES_MIN)?;
    (0..count).map(|_| read_endpoint(reader)).collect()
}

fn read_endpoint(reader: &mut Reader<'_>) -> Result<Endpoint, DecodeError> {
    let interface = reader.short_text("endpoint interface", INTERFACE_BYTES_MAX)?;
    let speed_mbps = reader.u32("endpoint speed")?;
    let mtu = reader.u32("endpoint mtu")?;
    let numa = reader.i32("endpoint numa")?;
    let up = reader.flag("endpoint up")?;
    let prefix = reader.u8("endpoint prefix")?;
    let rdma_port = reader.u16("endpoint rdma port")?;
    let address = read_address(reader)?;
    check_prefix(address.ip(), prefix)?;
    Ok(Endpoint { interface, address, prefix, speed_mbps, mtu, numa, up, rdma_port })
}

pub(super) fn write_endpoints(endpoints: &[Endpoint], writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    writer.count("endpoints", endpoints.len(), ENDPOINTS_MAX)?;
    endpoints.iter().try_for_each(|endpoint| write_endpoint(endpoint, writer))
}

fn write_endpoint(endpoint: &Endpoint, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    check_prefix(endpoint.address.ip(), endpoint.prefix)?;
    writer.short_text("endpoint interface", &endpoint.interface, INTERFACE_BYTES_MAX)?;
    writer.u32(endpoint.speed_mbps);
    writer.u32(endpoint.mtu);
    writer.i32(endpoint.numa);
    writer.u8(endpoint.up.into());
    writer.u8(endpoint.prefix);
    writer.u16(endpoint.rdma_port);
    write_address(endpoint.address, writer);
    Ok(())
}

fn check_prefix(address: IpAddr, prefix: u8) -> Result<(), DecodeError> {
    let max = if address.is_ipv4() { 32 } else { 128 };
    if prefix > max {
        return Err(DecodeError::UnknownNumber { what: "endpoint prefix", number: prefix.into() });
    }
    Ok(())
}

fn read_address(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let family = reader.u8("address family")?;
    reader.reserved::<1>("address reserved")?;
    let port = reader.u16("address port")?;
    match family {
        FAMILY_V4 => {
            let ip = Ipv4Addr::from(reader.array::<4>("IPv4 address")?);
            Ok(SocketAddrV4::new(ip, port).into())
        }
        FAMILY_V6 => {
            let ip = Ipv6Addr::from(reader.array::<16>("IPv6 address")?);
            let flow = reader.u32("IPv6 flow")?;
            let scope = reader.u32("IPv6 scope")?;
            Ok(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => Err(DecodeError::UnknownNumber { what: "address family", number: family.into() }),
    }
}

fn write_address(address: SocketAddr, writer: &mut Writer<'_>) {
    writer.u8(if address.is_ipv4() { FAMILY_V4 } else { FAMILY_V6 });
    writer.reserved::<1>();
    writer.u16(address.port());
    match address {
        SocketAddr::V4(address) => writer.bytes(&address.ip().octets()),
        SocketAddr::V6(address) => {
            writer.bytes(&address.ip().octets());
            writer.u32(address.flowinfo());
            writer.u32(address.scope_id());
        }
    }
}
