# the old notation of network ports
qemu-system-x86_64 \
  -enable-kvm -m 1024 \
  -hda /srv/vm/old.img -cdrom /srv/iso/install.iso -boot d \
  -net nic,model=e1000,macaddr=52:54:00:12:34:56 -net tap,ifname=tap1,script=/etc/qemu-ifup,downscript=no \
  -vnc :1 -usb -usbdevice tablet -k de \
  -qmp unix:/run/vm.qmp,server=on,wait=off
