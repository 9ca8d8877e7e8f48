# a script made for direct mode (docs/guests.md)
qemu-system-x86_64 \
  -name web -enable-kvm -cpu host -smp 4 \
  -object memory-backend-file,id=ram,size=4G,mem-path=/dev/shm/web.ram,share=on,discard-data=off \
  -machine q35,memory-backend=ram -m 4G \
  -drive file=/srv/vm/web.qcow2,if=virtio,format=qcow2,cache=none \
  -nic tap,ifname=tap-web,script=no,downscript=no,model=virtio-net-pci \
  -display none -daemonize -pidfile /run/web.pid \
  -qmp unix:/run/vm.qmp,server=on,wait=off
