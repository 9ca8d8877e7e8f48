# Part of install.sh: what building and testing the Debian package stands on.
#   deb          debhelper and dpkg-dev, which build the package
#   deb-check    lintian and shellcheck, which check it
#   system-root  a Debian 12 system with systemd and QEMU as a folder tree: the root of the machines that install the package
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
    as_root mmdebstrap --quiet --variant=apt --mode=root --include="$(echo $SYSTEM_PACKAGES | tr ' ' ',')" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
        "$SUITE" "$WORK/system-root" "$mirror" || die "cannot make the Debian system"
    # The package's own documentation and everything else that it brings is to be seen.
    as_root rm -f "$WORK"/system-root/etc/dpkg/dpkg.cfg.d/*
    publish "$WORK/system-root" "$CACHE/system-root" "$stamp"
    say "the system is in $CACHE/system-root"
}
