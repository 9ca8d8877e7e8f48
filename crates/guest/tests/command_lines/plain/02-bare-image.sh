# an image without any option before it
qemu-system-x86_64 \
  -enable-kvm -m 2G -smp 2 \
  /srv/vm/debian.qcow2 \
  -nic tap,ifname=tap0,script=no,downscript=no,model=virtio-net-pci \
  -qmp unix:/run/vm.qmp,server=on,wait=off
