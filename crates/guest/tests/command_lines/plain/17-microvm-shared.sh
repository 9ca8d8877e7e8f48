# a micro VM with shared memory
qemu-system-x86_64 \
  -M microvm,memory-backend=mem -enable-kvm -m 512m -nodefaults -no-user-config -display none \
  -object memory-backend-memfd,id=mem,size=512m,share=on \
  -kernel /srv/boot/vmlinux -append console=ttyS0 -serial file:/var/log/m.log \
  -qmp unix:/run/vm.qmp,server=on,wait=off
