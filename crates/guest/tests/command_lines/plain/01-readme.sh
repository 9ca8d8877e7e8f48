# what many READMEs say
qemu-system-x86_64 \
  -enable-kvm -m 4G \
  -hda /srv/vm/debian.qcow2 \
  -qmp unix:/run/vm.qmp,server=on,wait=off
