# Part of install.sh: what building and testing the Debian package needs.
#   deb          debhelper and dpkg-dev, which build the package
#   deb-check    lintian and shellcheck, which check it
#   system-root  a Debian 12 system with systemd and QEMU as a folder tree: the root of the machines that install the package
#   system-image how these machines start: busybox and lab/system/* as an initramfs
# shellcheck shell=sh

SYSTEM_RECIPE=1
DEB_PACKAGES="debhelper dpkg-dev"
DEB_CHECK_PACKAGES="lintian shellcheck"
# QEMU is what the package recommends; the machines reach no archive.
SYSTEM_PACKAGES="systemd-sysv udev kmod iproute2 procps qemu-system-x86"

step_deb() { install_missing "$DEB_PACKAGES"; }

step_deb_check() { install_missing "$DEB_CHECK_PACKAGES"; }

step_system_root() {
    stamp="recipe $SYSTEM_RECIPE $SYSTEM_PACKAGES"
    fresh "$CACHE/system-root" "$stamp" && return 0
    install_missing mmdebstrap
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || { refresh_lists; mirror=$(debian_mirror); }
    [ -n "$mirror" ] || die "no apt source for $SUITE on this machine: the lab needs Debian 12"
    say "making a Debian 12 system with $SYSTEM_PACKAGES"
    # shellcheck disable=SC2086 # a list of words
    as_root mmdebstrap --quiet --variant=apt --mode=root --include="$(echo $SYSTEM_PACKAGES | tr ' ' ',')" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
        "$SUITE" "$WORK/system-root" "$mirror" || die "cannot make the Debian system"
    # The package's own documentation and everything else that it brings is to be seen.
    as_root rm -f "$WORK"/system-root/etc/dpkg/dpkg.cfg.d/*
    publish "$WORK/system-root" "$CACHE/system-root" "$stamp"
    say "the system is in $CACHE/system-root"
}

# The start of such a machine, behind the kernel's modules: busybox and lab/system/*.
step_system_image() {
    busybox=$(command -v busybox) || die "busybox is missing: run lab/install.sh packages"
    stamp=$({ echo "recipe $SYSTEM_RECIPE"; cat "$LAB"/system/* "$busybox"; } | sha256sum | cut -d' ' -f1)
    fresh "$CACHE/system-image" "$stamp" && return 0
    work=$WORK/system-image
    mkdir -p "$work/root/lab/bin" "$work/image"
    cp "$busybox" "$work/root/lab/busybox"
    cp "$LAB"/system/* "$work/root/lab/bin/"
    chmod 755 "$work"/root/lab/bin/*
    chmod 644 "$work/root/lab/bin/lab.service"
    mv "$work/root/lab/bin/init" "$work/root/init"
    (cd "$work/root" && find . | sort | cpio --quiet --reproducible -R 0:0 -o -H newc) >"$work/image/root.cpio"
    publish "$work/image" "$CACHE/system-image" "$stamp"
}
