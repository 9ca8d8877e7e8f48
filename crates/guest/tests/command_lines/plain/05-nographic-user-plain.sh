# -nographic with user-mode network
qemu-system-x86_64 \
  -enable-kvm -m 1G -nographic \
  -drive file=/srv/vm/a.img,if=virtio,format=raw \
  -netdev user,id=n0 -device virtio-net-pci,netdev=n0 \
  -qmp unix:/run/vm.qmp,server=on,wait=off
