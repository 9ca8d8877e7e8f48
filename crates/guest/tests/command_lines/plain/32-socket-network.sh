# two guests joined by a socket
qemu-system-x86_64 \
  -enable-kvm -m 512 \
  -drive file=/srv/vm/r1.img,format=raw,if=virtio \
  -netdev socket,id=n0,listen=:1234 -device e1000,netdev=n0 \
  -qmp unix:/run/vm.qmp,server=on,wait=off
