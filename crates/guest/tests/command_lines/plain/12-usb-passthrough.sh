# a USB stick of the host
qemu-system-x86_64 \
  -enable-kvm -m 2G \
  -drive file=/srv/vm/tool.qcow2,if=virtio \
  -device qemu-xhci -device usb-host,vendorid=0x1050,productid=0x0407 \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
