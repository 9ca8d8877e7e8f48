#!/bin/sh
# Installs what the lab needs, on a Debian 12 machine that has Rust and gcc:
#   packages   Debian's own QEMU with qemu-img, libvirt (no daemon is started), ip/tc, nft, iperf3, socat, busybox, cpio and compilers, by apt
#   user       the system user linerate-qemu, as which agents run QEMU: no home, no shell, no password, no rights
#   qemu10     QEMU 10 of bookworm-backports, unpacked beside the system's into the cache folder
#   libvirt11  libvirt 11 of bookworm-backports, unpacked in the same way
#   kernel     a Debian cloud kernel and the modules that the guest loads, unpacked, not installed
#   guest      the self-checking guest: lab/guest/*.c and busybox as an initramfs
#   lldpd      the LLDP daemon, unpacked: installed, it would start to speak on the machine's own ports
#   etcd       the etcd server, unpacked: installed, it would start to listen
#   sshd       the ssh server, unpacked for the same reason
#   rdma-kernel, rdma-image   the RDMA lab: two full Debian kernels and an image with soft-RoCE (install-rdma.sh)
#   deb        what builds the Debian package (install-system.sh)
# and, only when they are named:
#   deb-check, system-root, system-image   what checks the package: lintian, a Debian system for virtual machines
# Usage: lab/install.sh [STEP...]      (the steps above, in this order, when none is named)
# A step that is already done is skipped, so a second run costs nothing. The cache folder is
# $LINERATE_CACHE, or .cache beside the workspace's Cargo.toml; remove it to start over.
set -eu

LAB=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${LINERATE_CACHE:-$(dirname "$LAB")/.cache}"
CACHE=$(cd "${LINERATE_CACHE:-$(dirname "$LAB")/.cache}" && pwd)
WORK=$CACHE/.work
SUITE=bookworm
# Raise when a step's recipe changes, so that caches made by older recipes are rebuilt.
QEMU_RECIPE=1
LIBVIRT_RECIPE=1
KERNEL_RECIPE=1
LLDPD_RECIPE=1
ETCD_RECIPE=1
SSHD_RECIPE=1
PACKAGES="qemu-system-x86 qemu-utils iproute2 nftables iperf3 socat busybox-static cpio zstd xz-utils make gcc libc6-dev util-linux kmod
protobuf-compiler libprotobuf-dev libibverbs-dev librdmacm-dev ibverbs-providers libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients valgrind libc6-dbg openssh-client"
MODULES="failover net_failover virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci
virtio_blk virtio_net virtio_balloon virtio_console virtio_mem virtio-rng dummy"

say() { printf 'lab: %s\n' "$*"; }
die() { printf 'lab: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "needs root to run: $* (become root or install sudo)"
    fi
}

fresh() { [ -e "$1/.stamp" ] && [ "$(cat "$1/.stamp")" = "$2" ]; }

# Moves a finished folder into place with its stamp, so that an interrupted run leaves no half of one.
publish() { # NEW FINAL STAMP
    printf '%s\n' "$3" >"$1/.stamp"
    rm -rf "$2"
    mv "$1" "$2"
}

missing_packages() { # PACKAGES
    for package in $1; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

# Package lists may be old or absent (container images ship without): refresh them once per run.
UPDATED=no
refresh_lists() {
    [ $UPDATED = no ] || return 0
    say "refreshing the package lists"
    as_root apt-get -qq -o DPkg::Lock::Timeout=120 update
    UPDATED=yes
}

install_packages() {
    refresh_lists
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends -y "$@" >/dev/null
}

install_missing() { # PACKAGES
    missing=$(missing_packages "$1" | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    say "installing $missing"
    # shellcheck disable=SC2086 # a list of words
    install_packages $missing
}

step_packages() {
    install_missing "$PACKAGES"
    # Each host of a lab lays its own permission for QEMU's bridge helper over this folder; the machine's stays empty.
    if [ ! -d /etc/qemu ]; then
        say "making the empty folder /etc/qemu"
        as_root mkdir /etc/qemu
    fi
}

# As packaging would make it. It stays until `userdel linerate-qemu`.
step_user() {
    getent passwd linerate-qemu >/dev/null && return 0
    say "making the system user linerate-qemu, as which agents run QEMU"
    as_root useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin linerate-qemu
}

# apt with its own sources, lists and cache: the machine's configuration stays as it is.
own_apt() { # COMMAND FOLDER ARGS...
    command=$1 folder=$2
    shift 2
    "$command" -qq -o Dir::Etc::sourcelist="$folder/backports.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root \
        -o Acquire::Retries=3 "$@"
}

# The mirror that this machine already uses for the base suite.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
        sed -n "s/ $SUITE\$//p" | head -n 1
}

backports_source() { # FOLDER
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || { refresh_lists; mirror=$(debian_mirror); }
    [ -n "$mirror" ] || die "no apt source for $SUITE on this machine: the lab needs Debian 12"
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e $keyring ] && option="[signed-by=$keyring] " || option=
    echo "deb $option$mirror $SUITE-backports main" >"$1/backports.list"
}

# Libraries that an unpacked program needs and the base system lacks come from the base suite, where they exist.
missing_libraries() { # PROGRAM
    LD_LIBRARY_PATH=$(dirname "$1")/../lib/x86_64-linux-gnu ldd "$1" | sed -n 's/^[[:space:]]*\([^ ]*\) => not found$/\1/p'
}

install_libraries() { # PROGRAM DEB
    missing=$(missing_libraries "$1")
    [ -n "$missing" ] || return 0
    wanted=$(dpkg-deb -f "$2" Depends | tr ',' '\n' | sed -n 's/^ *\(lib[a-z0-9.+-]*\).*/\1/p' |
        while read -r package; do
            dpkg-query -W "$package" >/dev/null 2>&1 || echo "$package"
        done | tr '\n' ' ')
    say "installing libraries of $(basename "$1"): $wanted"
    # shellcheck disable=SC2086 # a list of words
    install_packages $wanted
    missing=$(missing_libraries "$1")
    [ -z "$missing" ] || die "$1 still lacks: $missing"
}

step_qemu10() {
    fresh "$CACHE/qemu10" "recipe $QEMU_RECIPE" && return 0
    say "fetching QEMU 10 from $SUITE-backports"
    work=$WORK/qemu10
    backports_source "$work"
    own_apt apt-get "$work" update
    mkdir "$work/debs" "$work/root"
    for package in qemu-system-x86 qemu-system-common qemu-system-data seabios; do
        (cd "$work/debs" && own_apt apt-get "$work" download "$package") ||
            die "cannot fetch $package from $SUITE-backports"
    done
    for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    install_libraries "$work/root/usr/bin/qemu-system-x86_64" "$(echo "$work"/debs/qemu-system-x86_*.deb)"
    version=$("$work/root/usr/bin/qemu-system-x86_64" --version | sed -n '1s/.*version \([^ ]*\).*/\1/p')
    echo "$version" >"$work/root/version"
    publish "$work/root" "$CACHE/qemu10" "recipe $QEMU_RECIPE"
    say "QEMU $version is in $CACHE/qemu10"
}

step_libvirt11() {
    fresh "$CACHE/libvirt11" "recipe $LIBVIRT_RECIPE" && return 0
    say "fetching libvirt 11 from $SUITE-backports"
    work=$WORK/libvirt11
    backports_source "$work"
    own_apt apt-get "$work" update
    mkdir "$work/debs" "$work/root"
    for package in libvirt-common libvirt0 libvirt-daemon libvirt-daemon-common libvirt-daemon-driver-qemu libvirt-daemon-log libvirt-clients; do
        (cd "$work/debs" && own_apt apt-get "$work" download "$package") ||
            die "cannot fetch $package from $SUITE-backports"
    done
    for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    publish "$work/root" "$CACHE/libvirt11" "recipe $LIBVIRT_RECIPE"
}

# Unpacks a Debian package that must not be installed, as its service would start, with the libraries that its programs need.
unpack() { # NAME PACKAGE RECIPE PROGRAM…
    name=$1 package=$2 recipe=$3
    shift 3
    fresh "$CACHE/$name" "recipe $recipe" && return 0
    apt-cache show "$package" >/dev/null 2>&1 || refresh_lists
    say "fetching $package"
    work=$WORK/$name
    mkdir -p "$work/root"
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package") || die "cannot fetch $package"
    dpkg-deb -x "$work/$package"_*.deb "$work/root"
    for program in "$@"; do
        install_libraries "$work/root/$program" "$(echo "$work/$package"_*.deb)"
    done
    publish "$work/root" "$CACHE/$name" "recipe $recipe"
    say "$name is in $CACHE/$name"
}

step_lldpd() { unpack lldpd lldpd "$LLDPD_RECIPE" usr/sbin/lldpd usr/sbin/lldpcli; }

step_sshd() { unpack sshd openssh-server "$SSHD_RECIPE" usr/sbin/sshd; }

step_etcd() { unpack etcd etcd-server "$ETCD_RECIPE" usr/bin/etcd; }

step_kernel() {
    fresh "$CACHE/kernel" "recipe $KERNEL_RECIPE $MODULES" && return 0
    refresh_lists
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
    [ -n "$package" ] || die "apt knows no linux-image-cloud-amd64: the lab needs Debian 12"
    release=${package#linux-image-}
    say "fetching kernel $release"
    work=$WORK/kernel
    mkdir -p "$work"
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package") || die "cannot fetch $package"
    mkdir "$work/root" "$work/kernel" "$work/kernel/modules"
    dpkg-deb -x "$work"/*.deb "$work/root"
    cp "$work/root/boot/vmlinuz-$release" "$work/kernel/vmlinuz"
    copy_modules "$work/root" "$work/kernel/modules"
    echo "$release" >"$work/kernel/version"
    publish "$work/kernel" "$CACHE/kernel" "recipe $KERNEL_RECIPE $MODULES"
}

# Copies the modules that the guest loads, numbered in load order. One that is absent must be built in.
copy_modules() { # ROOT FOLDER
    number=10
    for module in $MODULES; do
        file=$(find "$1/lib/modules" -name "$module.ko*" | head -n 1)
        if [ -z "$file" ]; then
            grep -q "/$module\.ko" "$1"/lib/modules/*/modules.builtin || die "the kernel lacks the module $module"
            continue
        fi
        case $file in
        *.xz) xz -dc "$file" ;;
        *.zst) zstd -qdc "$file" ;;
        *) cat "$file" ;;
        esac >"$2/$number-$module.ko"
        number=$((number + 1))
    done
}

step_guest() {
    busybox=$(command -v busybox) || die "busybox is missing: run lab/install.sh packages"
    [ -e "$CACHE/kernel/version" ] || step_kernel
    stamp=$(cat "$LAB"/guest/*.c "$LAB"/guest/*.h "$LAB"/guest/Makefile "$LAB"/guest/bare/* "$LAB"/guest/tsc/* "$CACHE/kernel/.stamp" "$CACHE/kernel/version" "$busybox" |
        sha256sum | cut -d' ' -f1)
    fresh "$CACHE/guest" "$stamp" && return 0
    say "building the guest"
    work=$WORK/guest
    mkdir -p "$work/root/bin" "$work/root/modules" "$work/root/proc" "$work/root/sys" "$work/root/dev" "$work/guest"
    make -s -C "$LAB/guest" OUT="$work/root/init"
    make -s -C "$LAB/guest/bare" OUT="$work/guest"
    make -s -C "$LAB/guest/tsc" OUT="$work/guest"
    cp "$busybox" "$work/root/bin/busybox"
    ln -s busybox "$work/root/bin/sh"
    cp "$CACHE"/kernel/modules/*.ko "$work/root/modules/"
    # Uncompressed: unpacking costs more boot time in an emulated guest than reading a larger file.
    (cd "$work/root" && find . | sort | cpio --quiet --reproducible -R 0:0 -o -H newc) >"$work/guest/initramfs.cpio"
    publish "$work/guest" "$CACHE/guest" "$stamp"
    say "the guest is in $CACHE/guest"
}

. "$LAB/install-rdma.sh"
. "$LAB/install-system.sh"

# Test runs may start this beside each other: one at a time.
if [ "${LINERATE_INSTALL_LOCKED:-}" != "$CACHE" ]; then
    LINERATE_INSTALL_LOCKED=$CACHE exec flock "$CACHE/.lock" "$0" "$@"
fi
# Under the lock, so what is there was left by a run that was killed.
rm -rf "$WORK"
mkdir "$WORK"
trap 'rm -rf "$WORK"' EXIT
[ $# -gt 0 ] || set -- packages user qemu10 libvirt11 kernel guest lldpd etcd sshd rdma-kernel rdma-image deb
for step in "$@"; do
    case $step in
    packages | user | qemu10 | libvirt11 | kernel | guest | lldpd | etcd | sshd) "step_$step" ;;
    rdma-kernel) step_rdma_kernel ;;
    rdma-image) step_rdma_image ;;
    deb) step_deb ;;
    deb-check) step_deb_check ;;
    system-root) step_system_root ;;
    system-image) step_system_image ;;
    *) die "unknown step '$step': see the head of lab/install.sh" ;;
    esac
done
