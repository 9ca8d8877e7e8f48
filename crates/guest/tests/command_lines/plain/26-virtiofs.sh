# virtiofs with shared memory
qemu-system-x86_64 \
  -enable-kvm -m 4G \
  -object memory-backend-memfd,id=mem,size=4G,share=on -numa node,memdev=mem \
  -chardev socket,id=char0,path=/run/vfs.sock -device vhost-user-fs-pci,chardev=char0,tag=data \
  -drive file=/srv/vm/v.qcow2,if=virtio -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
