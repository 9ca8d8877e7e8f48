# Part of install.sh: what the RDMA lab needs: a virtual machine with Debian's full kernels and soft-RoCE.
#   rdma-kernel  kernels 6.1 (Debian 12) and 6.12 (bookworm-backports): vmlinuz and a small tree of modules
#   rdma-image   rdma-core's libraries and tools, perftest, busybox and lab/rdma/* as an initramfs for both
# shellcheck shell=sh

RDMA_RECIPE=1
RDMA_PACKAGES="libibverbs1 librdmacm1 ibverbs-providers ibverbs-utils rdmacm-utils perftest libibumad3 libpci3 libnl-3-200 libnl-route-3-200"
# What the machine may load, by name or on demand; a module that a kernel has built in is no error.
RDMA_MODULES="virtio_pci virtio_console virtio_net virtio_blk virtio_rng 9p 9pnet_virtio overlay
crc32_generic crc32c_generic ib_core ib_uverbs ib_umad rdma_rxe rdma_cm rdma_ucm
dummy veth bridge tun macvlan vrf bonding 8021q sch_tbf sch_htb sch_netem sch_ingress sch_fq act_police e1000e
nf_tables nft_ct nft_limit inet_diag tcp_diag udp_diag tls"

step_rdma_kernel() {
    rdma_kernel 6.1
    rdma_kernel 6.12
}

rdma_kernel() { # SERIES
    stamp="recipe $RDMA_RECIPE $RDMA_MODULES"
    fresh "$CACHE/rdma-kernel-$1" "$stamp" && return 0
    work=$WORK/rdma-kernel-$1
    mkdir -p "$work/debs" "$work/root" "$work/kernel"
    case $1 in
    6.1) rdma_fetch_base "$work" ;;
    *) rdma_fetch_backport "$work" ;;
    esac
    for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    release=$(basename "$work"/root/lib/modules/*)
    case $release in
    "$1".*) ;;
    *) die "linux-image-amd64 is $release, not $1: lab/install-rdma.sh needs another recipe" ;;
    esac
    cp "$work/root/boot/vmlinuz-$release" "$work/kernel/vmlinuz"
    rdma_modules "$work/root" "$release" "$work/kernel/tree"
    (cd "$work/kernel/tree" && find . | sort | cpio --quiet --reproducible -R 0:0 -o -H newc) >"$work/kernel/modules.cpio"
    rm -rf "$work/kernel/tree" "$work/root" "$work/debs"
    echo "$release" >"$work/kernel/version"
    publish "$work/kernel" "$CACHE/rdma-kernel-$1" "$stamp"
    say "kernel $release for the RDMA lab is in $CACHE/rdma-kernel-$1"
}

kernel_package() { sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1; }

rdma_fetch_base() { # FOLDER
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | kernel_package)
    [ -n "$package" ] || { refresh_lists; package=$(apt-cache depends linux-image-amd64 | kernel_package); }
    [ -n "$package" ] || die "apt knows no linux-image-amd64: the lab needs Debian 12"
    say "fetching $package"
    (cd "$1/debs" && apt-get -qq -o APT::Sandbox::User=root download "$package") || die "cannot fetch $package"
}

rdma_fetch_backport() { # FOLDER
    backports_source "$1"
    own_apt apt-get "$1" update
    package=$(own_apt apt-cache "$1" depends linux-image-amd64 | kernel_package)
    [ -n "$package" ] || die "$SUITE-backports has no linux-image-amd64"
    say "fetching $package from $SUITE-backports"
    (cd "$1/debs" && own_apt apt-get "$1" download "$package") || die "cannot fetch $package from $SUITE-backports"
}

# A tree with the wanted modules and what they need, unpacked, with depmod's indexes of its own.
rdma_modules() { # ROOT RELEASE TREE
    /sbin/depmod -b "$1" "$2"
    mkdir -p "$3/lib/modules/$2"
    cp "$1/lib/modules/$2"/modules.builtin* "$1/lib/modules/$2/modules.order" "$3/lib/modules/$2/"
    for module in $RDMA_MODULES; do
        /sbin/modprobe -d "$1" -S "$2" --show-depends "$module" 2>/dev/null || say "kernel $2 has no module $module" >&2
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u |
        while read -r file; do
            name=$(basename "$file")
            case $name in
            *.xz) xz -dc "$file" >"$3/lib/modules/$2/${name%.xz}" ;;
            *.zst) zstd -qdc "$file" >"$3/lib/modules/$2/${name%.zst}" ;;
            *) cp "$file" "$3/lib/modules/$2/" ;;
            esac
        done
    /sbin/depmod -b "$3" "$2"
}

step_rdma_image() {
    busybox=$(command -v busybox) || die "busybox is missing: run lab/install.sh packages"
    stamp=$({ echo "recipe $RDMA_RECIPE $RDMA_PACKAGES"; cat "$LAB"/rdma/* "$busybox"; } | sha256sum | cut -d' ' -f1)
    fresh "$CACHE/rdma-image" "$stamp" && return 0
    say "building the RDMA lab's image"
    work=$WORK/rdma-image
    mkdir -p "$work/debs" "$work/root/usr" "$work/image"
    rdma_packages "$work/debs"
    mkdir "$work/unpacked"
    for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/unpacked"; done
    rdma_root "$work/root" "$work/unpacked" "$busybox"
    (cd "$work/root" && find . | sort | cpio --quiet --reproducible -R 0:0 -o -H newc) >"$work/image/root.cpio"
    publish "$work/image" "$CACHE/rdma-image" "$stamp"
    say "the RDMA lab's image is in $CACHE/rdma-image"
}

# The packages are kept: a changed file of lab/rdma costs no download.
rdma_packages() { # FOLDER
    if ! fresh "$CACHE/rdma-debs" "$RDMA_PACKAGES"; then
        apt-cache show perftest >/dev/null 2>&1 || refresh_lists
        mkdir -p "$WORK/rdma-debs"
        # shellcheck disable=SC2086 # a list of words
        (cd "$WORK/rdma-debs" && apt-get -qq -o APT::Sandbox::User=root download $RDMA_PACKAGES) ||
            die "cannot fetch $RDMA_PACKAGES"
        publish "$WORK/rdma-debs" "$CACHE/rdma-debs" "$RDMA_PACKAGES"
    fi
    cp "$CACHE"/rdma-debs/*.deb "$1/"
}

# Everything else (C library, ip, tc, iperf3, QEMU, bash) is the host's own /usr, mounted read-only by the machine.
rdma_root() { # ROOT UNPACKED BUSYBOX
    (cd "$1" && mkdir -p usr proc sys dev run tmp root etc/libibverbs.d lib/modules lab/bin lab/lib var/tmp
        ln -s usr/bin bin; ln -s usr/sbin sbin; ln -s usr/lib64 lib64
        ln -s ../usr/lib/x86_64-linux-gnu lib/x86_64-linux-gnu)
    cp "$3" "$1/lab/busybox"
    cp "$2"/usr/bin/* "$1/lab/bin/"
    find "$2" -name '*.so*' -path '*x86_64-linux-gnu*' ! -path '*/libibverbs/*' -exec cp -a {} "$1/lab/lib/" \;
    cp -L "$2"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so "$1/lab/lib/"
    cp "$2/etc/libibverbs.d/rxe.driver" "$1/etc/libibverbs.d/"
    cp "$LAB"/rdma/* "$1/lab/bin/"
    mv "$1/lab/bin/init" "$1/init"
    chmod 755 "$1/init" "$1"/lab/bin/*
    echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
    echo 'root:x:0:' >"$1/etc/group"
    echo '127.0.0.1 localhost' >"$1/etc/hosts"
}
