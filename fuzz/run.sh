#!/bin/sh
# Builds the fuzz targets with the stable compiler and runs each for FUZZ_SECONDS (60 if not set).
#
#   fuzz/run.sh            all targets
#   fuzz/run.sh frame      this one
#
# No nightly compiler, no cargo-fuzz and nothing installed: coverage counters are an LLVM pass that a stable compiler
# takes as well, and libFuzzer comes with libfuzzer-sys (needs a C++ compiler). The address sanitizer would need nightly;
# the code under test has no unsafe. What was learned stays in fuzz/corpus, a crash goes to fuzz/artifacts.
set -eu

cd "$(dirname "$0")"
seconds="${FUZZ_SECONDS:-60}"
target_dir="${CARGO_TARGET_DIR:-target}/fuzz"
[ $# -gt 0 ] || set -- frame message token name revocation request certificate

host="$(rustc -vV | sed -n 's/^host: //p')"
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares"
flags="$flags -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing"

# With --target the flags are for the targets alone: build scripts have no counters to report to.
RUSTFLAGS="$flags" cargo build --release --target "$host" --target-dir "$target_dir"

for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "fuzz: $target for $seconds s"
    # The limits are the promise under test: no input makes the codec take more memory or time than its caps allow.
    "$target_dir/$host/release/$target" "corpus/$target" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=16 \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1
done
