#!/bin/sh
# Builds linerate_VERSION_amd64.deb from a built binary, with debhelper. Nothing is installed and no root is needed.
# Usage: packaging/build-deb.sh --binary FILE --third-party FILE [--version VERSION] [--out FOLDER] [--fast]
#   --binary       the built `linerate`; it also writes its man pages and completions
#   --third-party  names, licences and notices of the libraries in it: `cargo run -p xtask -- licences`
#   --version      Debian's version; by default the workspace's with revision 1
#   --out          where the package goes, target/deb by default
#   --fast         compress little: for tests
# DEB_MAINTAINER names who distributes the package: 'Name <address>'.
set -eu

PACKAGING=$(cd "$(dirname "$0")" && pwd)
PROJECT=$(dirname "$PACKAGING")
OUT=$PROJECT/target/deb
BINARY='' THIRD_PARTY='' VERSION='' LINERATE_DEB_COMPRESSION=-Zxz
MAINTAINER=${DEB_MAINTAINER:-Linerate authors <authors@linerate.invalid>}

die() { printf 'build-deb: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --fast) LINERATE_DEB_COMPRESSION='-Zgzip -z1'; shift; continue ;;
    esac
    [ $# -ge 2 ] || die "$1 wants a value"
    case $1 in
    --binary) BINARY=$2 ;;
    --third-party) THIRD_PARTY=$2 ;;
    --version) VERSION=$2 ;;
    --out) OUT=$2 ;;
    *) die "unknown option $1" ;;
    esac
    shift 2
done
[ -x "$BINARY" ] || die "--binary names no program; build it first"
[ -s "$THIRD_PARTY" ] || die "--third-party names no file"
for tool in dh dpkg-buildpackage; do
    command -v $tool >/dev/null || die "$tool is missing: run lab/install.sh deb"
done
[ -n "$VERSION" ] || VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$PROJECT/Cargo.toml")-1
export LINERATE_DEB_COMPRESSION DEB_BUILD_OPTIONS=noautodbgsym

mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
WORK=$(mktemp -d "$OUT/.work.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
TREE=$WORK/linerate
ROOT=$TREE/root
DOC=$ROOT/usr/share/doc/linerate

put() { # MODE SOURCE TARGET
    install -D -m "$1" "$2" "$ROOT/$3"
}

# A fixed time makes two builds of one state alike: that of the last commit, or of the changelog outside of git.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$PROJECT" log -1 --format=%ct 2>/dev/null || stat -c %Y "$PROJECT/CHANGELOG.md")}
export SOURCE_DATE_EPOCH

put 755 "$BINARY" usr/bin/linerate
put 644 "$PACKAGING/agent.toml" etc/linerate/agent.toml

man=$ROOT/usr/share/man/man1
"$BINARY" man --dir "$man"
for shell in bash/usr/share/bash-completion/completions/linerate zsh/usr/share/zsh/vendor-completions/_linerate \
    fish/usr/share/fish/vendor_completions.d/linerate.fish; do
    file=$ROOT/${shell#*/}
    mkdir -p "$(dirname "$file")"
    "$BINARY" completions "${shell%%/*}" >"$file"
    chmod 644 "$file"
done

for page in README.md SPECIFICATION.md; do put 644 "$PROJECT/$page" usr/share/doc/linerate/$page; done
mkdir -p "$DOC/docs"
install -m 644 "$PROJECT"/docs/*.md "$DOC/docs/"
put 644 "$PACKAGING/agent.toml" usr/share/doc/linerate/examples/agent.toml
put 644 "$THIRD_PARTY" usr/share/doc/linerate/third-party.txt

cp -a "$PACKAGING/debian" "$TREE/debian"
cp "$PROJECT/CHANGELOG.md" "$TREE/"
cp "$PACKAGING/linerate.sysusers" "$PACKAGING/linerate.tmpfiles" "$TREE/debian/"
cp "$PACKAGING/linerate-agent.service" "$TREE/debian/linerate.linerate-agent.service"
cp "$PACKAGING/run-linerate-ram.mount" "$TREE/debian/linerate.run-linerate-ram.mount"
sed -i "s/@MAINTAINER@/$MAINTAINER/" "$TREE/debian/control"
# The licence's text, after its title and copyright line, as that format wants it.
sed -e '1,/^Copyright/d' -e '1{/^$/d}' "$PROJECT/LICENSE-MIT" | sed -e '/./,$!d' -e 's/^$/./' -e 's/^/ /' >"$WORK/expat"
sed -i -e "/@EXPAT@/{r $WORK/expat
d}" "$TREE/debian/copyright"
cat >"$TREE/debian/changelog" <<END
linerate ($VERSION) unstable; urgency=medium

  * Built from the project's own packaging. What changed: changelog.gz.

 -- $MAINTAINER  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END

if ! (cd "$TREE" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps) >"$WORK/log" 2>&1; then
    cat "$WORK/log" >&2
    die "the package was not built"
fi
grep -E '^dpkg-shlibdeps: warning|^dh_.*: warning' "$WORK/log" >&2 || true
mv "$WORK/linerate_${VERSION#*:}_amd64.deb" "$OUT/"
echo "$OUT/linerate_${VERSION#*:}_amd64.deb"
