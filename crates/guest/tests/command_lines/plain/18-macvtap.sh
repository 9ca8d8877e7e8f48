# macvtap handed over as an open file
qemu-system-x86_64 \
  -enable-kvm -m 2G \
  -drive file=/srv/vm/mv.qcow2,if=virtio \
  -netdev tap,id=n0,fd=3 -device virtio-net-pci,netdev=n0,mac=1a:46:0b:ca:bc:7b \
  -qmp unix:/run/vm.qmp,server=on,wait=off
