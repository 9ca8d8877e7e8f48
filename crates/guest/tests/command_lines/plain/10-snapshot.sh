# -snapshot: writes into temporary files
qemu-system-x86_64 \
  -enable-kvm -m 2G -snapshot \
  -drive file=/srv/vm/golden.qcow2,if=virtio \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
