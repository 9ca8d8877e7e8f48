# kernel and initrd from the host
qemu-system-x86_64 \
  -enable-kvm -m 512M -nodefaults -no-reboot \
  -kernel /srv/boot/vmlinuz -initrd /srv/boot/initrd.img \
  -append 'console=ttyS0 root=/dev/vda rw panic=-1' \
  -drive file=/srv/vm/root.ext4,format=raw,if=virtio \
  -serial stdio -display none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
