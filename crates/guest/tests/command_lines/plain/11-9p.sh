# a folder of the host by 9p
qemu-system-x86_64 \
  -enable-kvm -m 2G \
  -drive file=/srv/vm/dev.qcow2,if=virtio \
  -virtfs local,path=/home/dev/src,mount_tag=src,security_model=mapped-xattr \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
