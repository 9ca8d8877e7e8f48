//! The binding's structures and numbers against the headers of libibverbs and librdmacm, which a C compiler is asked
//! about.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::mem::{offset_of, size_of};
use std::process::Command;

use linerate_net::rdma::abi::*;

/// C expressions of sizes and offsets, and what the binding has.
const LAYOUT: &[(&str, usize)] = &[
    ("offsetof(struct ibv_device, transport_type)", offset_of!(Device, transport_type)),
    ("offsetof(struct ibv_context, device)", offset_of!(Context, device)),
    ("offsetof(struct ibv_context, ops)", offset_of!(Context, ops)),
    ("offsetof(struct ibv_context_ops, poll_cq)", offset_of!(ContextOps, poll_cq)),
    ("offsetof(struct ibv_context_ops, req_notify_cq)", offset_of!(ContextOps, req_notify_cq)),
    ("offsetof(struct ibv_context_ops, post_send)", offset_of!(ContextOps, post_send)),
    ("offsetof(struct ibv_context_ops, post_recv)", offset_of!(ContextOps, post_recv)),
    ("offsetof(struct ibv_pd, context)", offset_of!(Pd, context)),
    ("offsetof(struct ibv_mr, addr)", offset_of!(Mr, addr)),
    ("offsetof(struct ibv_mr, length)", offset_of!(Mr, length)),
    ("offsetof(struct ibv_mr, lkey)", offset_of!(Mr, lkey)),
    ("offsetof(struct ibv_mr, rkey)", offset_of!(Mr, rkey)),
    ("offsetof(struct ibv_comp_channel, fd)", offset_of!(CompChannel, fd)),
    ("offsetof(struct ibv_cq, context)", offset_of!(Cq, context)),
    ("offsetof(struct ibv_qp, context)", offset_of!(Qp, context)),
    ("sizeof(struct ibv_wc)", size_of::<Wc>()),
    ("offsetof(struct ibv_wc, status)", offset_of!(Wc, status)),
    ("offsetof(struct ibv_wc, opcode)", offset_of!(Wc, opcode)),
    ("offsetof(struct ibv_wc, vendor_err)", offset_of!(Wc, vendor_err)),
    ("offsetof(struct ibv_wc, byte_len)", offset_of!(Wc, byte_len)),
    ("offsetof(struct ibv_wc, imm_data)", offset_of!(Wc, imm_data)),
    ("offsetof(struct ibv_wc, wc_flags)", offset_of!(Wc, wc_flags)),
    ("sizeof(struct ibv_sge)", size_of::<Sge>()),
    ("offsetof(struct ibv_sge, length)", offset_of!(Sge, length)),
    ("offsetof(struct ibv_sge, lkey)", offset_of!(Sge, lkey)),
    ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
    ("offsetof(struct ibv_send_wr, next)", offset_of!(SendWr, next)),
    ("offsetof(struct ibv_send_wr, sg_list)", offset_of!(SendWr, sg_list)),
    ("offsetof(struct ibv_send_wr, num_sge)", offset_of!(SendWr, num_sge)),
    ("offsetof(struct ibv_send_wr, opcode)", offset_of!(SendWr, opcode)),
    ("offsetof(struct ibv_send_wr, send_flags)", offset_of!(SendWr, send_flags)),
    ("offsetof(struct ibv_send_wr, imm_data)", offset_of!(SendWr, imm_data)),
    ("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", offset_of!(SendWr, remote_addr)),
    ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(SendWr, rkey)),
    ("sizeof(struct ibv_recv_wr)", size_of::<RecvWr>()),
    ("offsetof(struct ibv_recv_wr, next)", offset_of!(RecvWr, next)),
    ("offsetof(struct ibv_recv_wr, sg_list)", offset_of!(RecvWr, sg_list)),
    ("offsetof(struct ibv_recv_wr, num_sge)", offset_of!(RecvWr, num_sge)),
    ("sizeof(struct ibv_qp_cap)", size_of::<QpCap>()),
    ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
    ("offsetof(struct ibv_qp_init_attr, send_cq)", offset_of!(QpInitAttr, send_cq)),
    ("offsetof(struct ibv_qp_init_attr, recv_cq)", offset_of!(QpInitAttr, recv_cq)),
    ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(QpInitAttr, cap)),
    (
        "offsetof(struct ibv_qp_init_attr, cap.max_inline_data)",
        offset_of!(QpInitAttr, cap) + offset_of!(QpCap, max_inline_data),
    ),
    ("offsetof(struct ibv_qp_init_attr, qp_type)", offset_of!(QpInitAttr, qp_type)),
    ("offsetof(struct ibv_qp_init_attr, sq_sig_all)", offset_of!(QpInitAttr, sq_sig_all)),
    ("offsetof(struct rdma_event_channel, fd)", offset_of!(EventChannel, fd)),
    ("offsetof(struct rdma_cm_id, verbs)", offset_of!(CmId, verbs)),
    ("offsetof(struct rdma_cm_id, channel)", offset_of!(CmId, channel)),
    ("offsetof(struct rdma_cm_id, qp)", offset_of!(CmId, qp)),
    ("offsetof(struct rdma_cm_id, route.addr.src_storage)", offset_of!(CmId, src_storage)),
    ("offsetof(struct rdma_cm_id, route.addr.dst_storage)", offset_of!(CmId, dst_storage)),
    ("sizeof(struct rdma_conn_param)", size_of::<ConnParam>()),
    ("offsetof(struct rdma_conn_param, private_data_len)", offset_of!(ConnParam, private_data_len)),
    ("offsetof(struct rdma_conn_param, responder_resources)", offset_of!(ConnParam, responder_resources)),
    ("offsetof(struct rdma_conn_param, initiator_depth)", offset_of!(ConnParam, initiator_depth)),
    ("offsetof(struct rdma_conn_param, flow_control)", offset_of!(ConnParam, flow_control)),
    ("offsetof(struct rdma_conn_param, retry_count)", offset_of!(ConnParam, retry_count)),
    ("offsetof(struct rdma_conn_param, rnr_retry_count)", offset_of!(ConnParam, rnr_retry_count)),
    ("offsetof(struct rdma_conn_param, srq)", offset_of!(ConnParam, srq)),
    ("offsetof(struct rdma_conn_param, qp_num)", offset_of!(ConnParam, qp_num)),
    ("offsetof(struct rdma_cm_event, id)", offset_of!(CmEvent, id)),
    ("offsetof(struct rdma_cm_event, event)", offset_of!(CmEvent, event)),
    ("offsetof(struct rdma_cm_event, status)", offset_of!(CmEvent, status)),
    ("offsetof(struct rdma_cm_event, param.conn)", offset_of!(CmEvent, conn)),
];

/// The same with the numbers of both headers.
fn facts() -> Vec<(&'static str, u64)> {
    let all = LAYOUT.iter().copied().chain(numbers());
    all.map(|(expression, value)| (expression, value as u64)).collect()
}

fn numbers() -> Vec<(&'static str, usize)> {
    vec![
        ("IBV_ACCESS_LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE as usize),
        ("IBV_ACCESS_REMOTE_WRITE", IBV_ACCESS_REMOTE_WRITE as usize),
        ("IBV_QPT_RC", IBV_QPT_RC as usize),
        ("IBV_WR_RDMA_WRITE", IBV_WR_RDMA_WRITE as usize),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM as usize),
        ("IBV_WR_SEND", IBV_WR_SEND as usize),
        ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED as usize),
        ("IBV_SEND_INLINE", IBV_SEND_INLINE as usize),
        ("IBV_WC_SUCCESS", IBV_WC_SUCCESS as usize),
        ("IBV_WC_WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR as usize),
        ("IBV_WC_REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR as usize),
        ("IBV_WC_RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR as usize),
        ("IBV_WC_WITH_IMM", IBV_WC_WITH_IMM as usize),
        ("IBV_TRANSPORT_IWARP", IBV_TRANSPORT_IWARP as usize),
        ("RDMA_PS_TCP", RDMA_PS_TCP as usize),
        ("RDMA_OPTION_ID", RDMA_OPTION_ID as usize),
        ("RDMA_OPTION_ID_TOS", RDMA_OPTION_ID_TOS as usize),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", RDMA_OPTION_ID_ACK_TIMEOUT as usize),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", RDMA_CM_EVENT_ADDR_RESOLVED as usize),
        ("RDMA_CM_EVENT_ADDR_ERROR", RDMA_CM_EVENT_ADDR_ERROR as usize),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", RDMA_CM_EVENT_ROUTE_RESOLVED as usize),
        ("RDMA_CM_EVENT_ROUTE_ERROR", RDMA_CM_EVENT_ROUTE_ERROR as usize),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", RDMA_CM_EVENT_CONNECT_REQUEST as usize),
        ("RDMA_CM_EVENT_UNREACHABLE", RDMA_CM_EVENT_UNREACHABLE as usize),
        ("RDMA_CM_EVENT_REJECTED", RDMA_CM_EVENT_REJECTED as usize),
        ("RDMA_CM_EVENT_ESTABLISHED", RDMA_CM_EVENT_ESTABLISHED as usize),
        ("RDMA_CM_EVENT_DISCONNECTED", RDMA_CM_EVENT_DISCONNECTED as usize),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", RDMA_CM_EVENT_DEVICE_REMOVAL as usize),
    ]
}

#[test]
fn the_binding_is_laid_out_as_the_headers_say() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for (expression, _) in facts() {
        text.push_str(&format!("    printf(\"%llu\\n\", (unsigned long long)({expression}));\n"));
    }
    text.push_str("    return 0;\n}\n");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("gcc").arg("-o").args([&program, &source]).output().expect("gcc");
    let message = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "lab/install.sh installs the headers that are missing:\n{message}");
    let output = Command::new(&program).output().unwrap();
    let values: Vec<u64> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts().len());
    for ((expression, ours), theirs) in facts().into_iter().zip(values) {
        assert_eq!(ours, theirs, "{expression}");
    }
}
