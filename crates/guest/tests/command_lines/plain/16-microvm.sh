# a micro VM
qemu-system-x86_64 \
  -M microvm,x-option-roms=off,pit=off,pic=off,isa-serial=off,rtc=off \
  -enable-kvm -cpu host -m 256m -smp 1 -nodefaults -no-user-config -nographic -no-reboot \
  -kernel /srv/boot/vmlinux -append 'console=hvc0 root=/dev/vda' \
  -device virtio-serial-device -chardev stdio,id=virtiocon0 -device virtconsole,chardev=virtiocon0 \
  -drive id=root,file=/srv/vm/root.img,format=raw,if=none -device virtio-blk-device,drive=root \
  -netdev tap,id=tap0,ifname=tap-m,script=no,downscript=no -device virtio-net-device,netdev=tap0 \
  -qmp unix:/run/vm.qmp,server=on,wait=off
