# the old notation with user-mode network
qemu-system-x86_64 \
  -enable-kvm -m 512 \
  -hda /srv/vm/old.img \
  -net nic -net user \
  -qmp unix:/run/vm.qmp,server=on,wait=off
