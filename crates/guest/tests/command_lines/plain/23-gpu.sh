# a passed-through graphics card
qemu-system-x86_64 \
  -enable-kvm -M q35 -cpu host,kvm=off -m 16G \
  -device vfio-pci,host=01:00.0,multifunction=on -device vfio-pci,host=01:00.1 \
  -drive file=/srv/vm/win.qcow2,if=virtio -nic none -vga none -nographic \
  -qmp unix:/run/vm.qmp,server=on,wait=off
