# UEFI by -bios
qemu-system-x86_64 \
  -enable-kvm -m 4G -bios /usr/share/ovmf/OVMF.fd \
  -drive file=/srv/vm/uefi.qcow2,if=virtio \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
