//! A fault on purpose. Where valgrind looks on and does not find it, what it says of the other tests means nothing.

use super::super::memory::Buffer;
use super::super::verbs::Access;
use super::*;

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_registration_is_forgotten() {
    let _link = link();
    let (source, _destination) = connected(&patient());
    std::mem::forget(Buffer::new(&source.domain.protection, PAGE as usize, Access::Send).unwrap());
}
