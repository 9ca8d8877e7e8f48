# a disk of an NBD server
qemu-system-x86_64 \
  -enable-kvm -m 1G \
  -drive file=nbd:10.9.0.1:10809:exportname=a,format=raw,if=virtio \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
