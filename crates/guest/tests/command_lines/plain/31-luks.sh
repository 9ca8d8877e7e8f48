# a disk that is encrypted by QEMU
qemu-system-x86_64 \
  -enable-kvm -m 2G \
  -object secret,id=sec0,file=/root/key -blockdev driver=luks,node-name=d,key-secret=sec0,file.driver=file,file.filename=/srv/vm/secret.luks \
  -device virtio-blk-pci,drive=d -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
