//! libibverbs and librdmacm, loaded when they are first needed: on a host without rdma-core the agent runs all the
//! same.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library as Shared;
use thiserror::Error;

use super::abi::{
    CmEvent, CmId, CompChannel, ConnParam, Context, Cq, EventChannel, Mr, Pd, QpInitAttr, SockAddr, Text,
};

/// Why there is no RDMA on this host.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// Not installed, or not for this machine.
    #[error(
        "no RDMA: {name} cannot be loaded ({source}); install libibverbs1, librdmacm1 and ibverbs-providers"
    )]
    Missing {
        /// Name of the library.
        name: &'static str,
        /// What the loader said.
        #[source]
        source: libloading::Error,
    },
    /// Too old a version.
    #[error("no RDMA: {name} has no function {function} ({source}); update rdma-core")]
    Function {
        /// Name of the library.
        name: &'static str,
        function: &'static str,
        /// What the loader said.
        #[source]
        source: libloading::Error,
    },
}

macro_rules! functions {
    ($table:ident, $library:literal: $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library; what each wants is in its manual page.
        #[allow(missing_docs)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _shared: Shared,
        }

        impl $table {
            fn load(file: &'static str) -> Result<$table, LibraryError> {
                // SAFETY: these libraries' initialisers only set up tables and read their environment; they are the
                // system's own, found as any program that is linked with them finds them.
                let shared = unsafe { Shared::new(file) }
                    .map_err(|source| LibraryError::Missing { name: file, source })?;
                Ok($table {
                    $($name: {
                        // SAFETY: the type is that of the function's declaration in the header, which has been the same
                        // since the symbol's version was made; the pointer is used only while `_shared` is loaded.
                        let found = unsafe { shared.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|source| LibraryError::Function {
                            name: file,
                            function: stringify!($name),
                            source,
                        })?
                    },)*
                    _shared: shared,
                })
            }
        }
    };
}

functions! { Verbs, "libibverbs":
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    ibv_wc_status_str: fn(c_uint) -> Text;
}

functions! { Cm, "librdmacm":
    rdma_create_event_channel: fn() -> *mut EventChannel;
    rdma_destroy_event_channel: fn(*mut EventChannel);
    rdma_create_id: fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_uint) -> c_int;
    rdma_destroy_id: fn(*mut CmId) -> c_int;
    rdma_bind_addr: fn(*mut CmId, *mut SockAddr) -> c_int;
    rdma_resolve_addr: fn(*mut CmId, *mut SockAddr, *mut SockAddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut CmId, c_int) -> c_int;
    rdma_create_qp: fn(*mut CmId, *mut Pd, *mut QpInitAttr) -> c_int;
    rdma_destroy_qp: fn(*mut CmId);
    rdma_connect: fn(*mut CmId, *mut ConnParam) -> c_int;
    rdma_listen: fn(*mut CmId, c_int) -> c_int;
    rdma_accept: fn(*mut CmId, *mut ConnParam) -> c_int;
    rdma_reject: fn(*mut CmId, *const c_void, u8) -> c_int;
    rdma_disconnect: fn(*mut CmId) -> c_int;
    rdma_get_cm_event: fn(*mut EventChannel, *mut *mut CmEvent) -> c_int;
    rdma_ack_cm_event: fn(*mut CmEvent) -> c_int;
    rdma_set_option: fn(*mut CmId, c_int, c_int, *mut c_void, usize) -> c_int;
    rdma_migrate_id: fn(*mut CmId, *mut EventChannel) -> c_int;
    rdma_get_src_port: fn(*mut CmId) -> u16;
}

/// libibverbs and librdmacm, loaded at run time.
pub struct Library {
    /// Queues, memory and what moves between them.
    pub verbs: Verbs,
    pub cm: Cm,
}

impl Library {
    /// The libraries of this system, loaded by the first call.
    pub fn get() -> Result<&'static Library, &'static LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(|| Library::load("libibverbs.so.1", "librdmacm.so.1")).as_ref()
    }

    fn load(verbs: &'static str, cm: &'static str) -> Result<Library, LibraryError> {
        Ok(Library { verbs: Verbs::load(verbs)?, cm: Cm::load(cm)? })
    }

    /// What a completion's status means.
    pub fn status_text(&self, status: c_uint) -> String {
        // SAFETY: takes any number and gives back a constant string.
        text(unsafe { (self.verbs.ibv_wc_status_str)(status) })
    }
}

/// A constant string of a library.
pub(super) fn text(constant: Text) -> String {
    if constant.is_null() {
        return String::new();
    }
    // SAFETY: not null, and callers pass strings that a library holds for ever, or for as long as its device is open.
    unsafe { CStr::from_ptr(constant) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_is_reported_in_a_sentence_with_what_to_do() {
        let error = Library::load("libibverbs-absent.so.1", "librdmacm.so.1").err().unwrap().to_string();
        assert!(error.starts_with("no RDMA: libibverbs-absent.so.1 cannot be loaded"), "{error}");
        assert!(error.contains("install libibverbs1"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_reported_too() {
        let error = Library::load("libc.so.6", "librdmacm.so.1").err().unwrap().to_string();
        assert!(error.starts_with("no RDMA: libc.so.6 has no function ibv_alloc_pd"), "{error}");
    }

    #[test]
    fn the_installed_libraries_have_all_that_is_used() {
        let library = Library::get().unwrap();
        assert_eq!(library.status_text(10), "remote access error");
    }
}
