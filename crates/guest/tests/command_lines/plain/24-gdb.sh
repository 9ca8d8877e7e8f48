# kernel debugging
qemu-system-x86_64 \
  -enable-kvm -m 1G -s -S -nographic \
  -kernel /srv/boot/bzImage -append nokaslr \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
