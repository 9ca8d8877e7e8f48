# a cloud image with its seed
qemu-system-x86_64 \
  -machine accel=kvm,type=q35 -cpu host -m 2G -nographic \
  -device virtio-net-pci,netdev=net0 -netdev bridge,id=net0,br=br0 \
  -drive if=virtio,format=qcow2,file=/srv/vm/jammy.qcow2 \
  -drive if=virtio,format=raw,file=/srv/vm/seed.img,readonly=on \
  -qmp unix:/run/vm.qmp,server=on,wait=off
