# -nographic with user-mode network and a forwarded port
qemu-system-x86_64 \
  -enable-kvm -m 1G -nographic \
  -drive file=/srv/vm/a.img,if=virtio,format=raw \
  -netdev user,id=n0,hostfwd=tcp::2222-:22 -device virtio-net-pci,netdev=n0 \
  -qmp unix:/run/vm.qmp,server=on,wait=off
