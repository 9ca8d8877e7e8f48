# Two commands are all that a new user needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Where cargo puts what it has built.
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
CARGO ?= cargo
SEEDS ?= 5000
FUZZ_SECONDS ?= 60
FLEET_HOSTS ?= 10000
FLEET_MIXES ?= 1000
KILLS ?= 20
RUNS ?= 5
DEB_NAME = $(or $(DEB_VERSION),$(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)-1)

.PHONY: help install build demo test unit sim fleet-sim lint doc fuzz bench bench-tls bench-drain drain-kills soak faults libvirt-cuts disk-cuts wires rdma-check rdma-moves far rdma-wires doctor deb deb-test sweep clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1|/' | column -t -s '|'

install: ## install what build, tests and demo need (Debian packages, QEMU 10.0, a guest kernel); says what; repeatable
	@bash lab/install.sh

build: install ## build the binaries
	$(CARGO) build --release --locked -p linerate -p linerate-lab -p linerate-bench

demo: build ## move a real QEMU guest between two hosts over two links, cut one on the way, show what happened
	@$(RELEASE)/linerate-lab demo --linerate $(RELEASE)/linerate

test: install ## everything that must pass: unit, property, simulator and real-QEMU tests
	lab/fair.sh $(CARGO) run --quiet --locked -p xtask -- test

unit: ## tests that need neither root nor QEMU
	$(CARGO) test --locked -p linerate-wire -p linerate-core -p linerate-plan -p linerate-api

sim: ## the simulator over many seeds: make sim SEEDS=100000
	$(CARGO) run --release --locked -p linerate-plan --bin sim -- --seeds $(SEEDS)

fleet-sim: ## drains: 1,000 mixes of guests against the lower bound, and 10,000 hosts one after another; FLEET_HOSTS=, FLEET_MIXES=
	$(CARGO) run --release --locked -p linerate-plan --bin fleet-sim -- --hosts $(FLEET_HOSTS) --mixes $(FLEET_MIXES)

lint: ## formatting, clippy with warnings denied, docs, dependency direction
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --locked --document-private-items --quiet
	$(CARGO) run --quiet --locked -p xtask -- check

doc: ## the API documentation
	$(CARGO) doc --workspace --no-deps --locked --document-private-items

fuzz: ## fuzz what strangers send: make fuzz FUZZ_SECONDS=600
	FUZZ_SECONDS=$(FUZZ_SECONDS) bash fuzz/run.sh

bench: build ## interleaved comparison with QEMU's own migration; writes bench/out/
	$(RELEASE)/linerate-bench run --linerate $(RELEASE)/linerate --out bench/out

bench-tls: build ## TLS against plain text, Linerate's and QEMU's, interleaved; writes bench/out/tls/
	$(RELEASE)/linerate-bench run --linerate $(RELEASE)/linerate --out bench/out/tls --qemu 10.0 --cases idle,cut --pairs 6 --methods linerate,multifd,linerate-tls,multifd-tls

drain-kills: install ## drains whose agents are killed at random instants: make drain-kills KILLS=20 RUNS=5
	@[ $(RUNS) -gt 0 ] && [ $(KILLS) -gt 0 ] || { echo "RUNS and KILLS must be at least 1" >&2; exit 2; }
	for run in $$(seq $(RUNS)); do LINERATE_KILLS=$(KILLS) LINERATE_SEED=$$run $(CARGO) test --locked --workspace --test real_drains random_instants -- --nocapture || exit 1; done

soak: build ## 200 migrations back and forth, both QEMU versions, three cache modes
	$(RELEASE)/linerate-bench soak --linerate $(RELEASE)/linerate --out bench/out

faults: build ## cut one of two links 50 times at a random instant, and kill everything at every step
	$(RELEASE)/linerate-bench faults --linerate $(RELEASE)/linerate --out bench/out

libvirt-cuts: build ## 50 moves of libvirt's domains, a link lost at a random instant of each
	$(RELEASE)/linerate-bench libvirt --linerate $(RELEASE)/linerate --out bench/out

disk-cuts: build ## 50 moves of a guest with a disk that is not shared, a link lost at a random instant of each: QEMU 10.0, and 7.2 under KVM
	$(RELEASE)/linerate-bench disks --linerate $(RELEASE)/linerate --out bench/out
	@[ -w /dev/kvm ] || echo "not run: 50 moves with QEMU 7.2, as there is no /dev/kvm here"
	@[ ! -w /dev/kvm ] || $(RELEASE)/linerate-bench disks --qemu 7.2 --kvm --linerate $(RELEASE)/linerate --out bench/out

wires: build ## the ping-pong of `linerate bench` against a plain one in C on the same link; writes bench/out/
	$(RELEASE)/linerate-bench wires --linerate $(RELEASE)/linerate --out bench/out

rdma-check: install ## the RDMA transport's tests under valgrind, a guest by RDMA between two kernels, and one whose host is revoked, in the RDMA lab; some minutes
	$(CARGO) build --locked -p linerate -p linerate-lab
	$(CARGO) test --workspace --locked --lib --no-run
	$(CARGO) test --workspace --locked --test rdma -- --ignored --exact the_rdma_transport_under_valgrind --nocapture
	$(CARGO) test --workspace --locked --test rdma -- --ignored --exact a_guest_goes_by_rdma_to_debian_12s_kernel_and_back
	$(CARGO) test --workspace --locked --test rdma -- --ignored --exact a_guest_stays_on_a_host_that_is_revoked_in_the_middle_of_a_copy_by_rdma

rdma-moves: install ## 200 moves of a guest between two machines by RDMA, a cable pulled in 20 of them; RDMA_MOVES=, RDMA_CUTS=, RDMA_KERNEL=6.1, RDMA_LOG=; an hour
	$(CARGO) build --locked -p linerate -p linerate-lab
	$(CARGO) test --workspace --locked --test rdma -- --ignored --exact a_guest_moves_by_rdma_many_times --nocapture

bench-drain: build ## a host that is emptied: `linerate drain` against fixed numbers of migrations at once; writes bench/out/
	$(RELEASE)/linerate-bench drains --linerate $(RELEASE)/linerate --out bench/out

far: build ## migrations beside a link that is far away or loses packets, against the good link alone; writes bench/out/
	$(RELEASE)/linerate-bench far --linerate $(RELEASE)/linerate --out bench/out

rdma-wires: build ## `linerate bench` over RDMA against perftest on the same soft-RoCE devices; writes bench/out/
	$(RELEASE)/linerate-bench rdma-wires --linerate $(RELEASE)/linerate --out bench/out

doctor: build ## how long the doctor takes, and migrations over a path that passes less than its ends; writes bench/out/
	$(RELEASE)/linerate-bench doctor --linerate $(RELEASE)/linerate --out bench/out

deb: ## build the Debian package: target/deb/linerate_VERSION_amd64.deb; installs debhelper, lintian and shellcheck; DEB_VERSION=, DEB_MAINTAINER='Name <address>'
	bash lab/install.sh deb deb-check
	$(CARGO) build --release --locked -p linerate
	mkdir -p target/deb
	$(CARGO) run --quiet --locked -p xtask -- licences >target/deb/third-party.txt
	packaging/build-deb.sh --binary $(RELEASE)/linerate --third-party target/deb/third-party.txt $(if $(DEB_VERSION),--version $(DEB_VERSION))
	shellcheck packaging/build-deb.sh packaging/debian/linerate.postrm
	lintian --allow-root --fail-on error,warning target/deb/linerate_$(DEB_NAME)_amd64.deb

deb-test: deb ## the package in machines with systemd: install, upgrade, remove, purge with guests that run, two hosts from nothing; many minutes
	bash lab/install.sh packages kernel guest rdma-kernel system-root system-image
	rm -rf target/deb/test && mkdir -p target/deb/test
	cp target/deb/linerate_$(DEB_NAME)_amd64.deb target/deb/test/
	packaging/build-deb.sh --binary $(RELEASE)/linerate --third-party target/deb/third-party.txt --out target/deb/test --fast --version $(DEB_NAME)+next1
	LINERATE_DEBS=$(CURDIR)/target/deb/test $(CARGO) test --workspace --locked --test package -- --ignored --nocapture --test-threads 1

sweep: ## remove what an interrupted run left behind (namespaces, mounts, processes of dead makers)
	$(RELEASE)/linerate-lab sweep

clean: ## remove build results and the cache of packages
	rm -rf target .cache bench/out fuzz/target
