# a desktop with a window and sound
qemu-system-x86_64 \
  -enable-kvm -M q35 -cpu host -smp 4 -m 8G \
  -drive file=/srv/vm/desktop.qcow2,if=virtio,aio=native,cache.direct=on \
  -device virtio-vga -display gtk,zoom-to-fit=on \
  -audiodev pa,id=snd0 -device ich9-intel-hda -device hda-duplex,audiodev=snd0 \
  -device qemu-xhci -device usb-tablet -device usb-kbd \
  -nic bridge,br=br0,model=virtio-net-pci \
  -qmp unix:/run/vm.qmp,server=on,wait=off
