# I/O limits, a serial console by telnet, a watchdog
qemu-system-x86_64 \
  -name db -enable-kvm -m 4G -uuid 7d1e9c7e-7d10-4d8e-9a00-0123456789ab \
  -drive file=/srv/vm/db.qcow2,if=virtio,throttling.iops-total=500,throttling.bps-total=104857600 \
  -serial telnet:127.0.0.1:7001,server=on,wait=off -device i6300esb -watchdog-action poweroff \
  -nic tap,ifname=tap5,script=no,downscript=no,model=virtio -rtc base=localtime,driftfix=slew -vnc 127.0.0.1:5,password=on \
  -qmp unix:/run/vm.qmp,server=on,wait=off
