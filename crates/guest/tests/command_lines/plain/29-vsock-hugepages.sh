# vsock, huge pages, several disks
qemu-system-x86_64 \
  -name ci7,process=ci7 -enable-kvm -m 8G -smp 8 -nodefaults -no-user-config -display none \
  -object memory-backend-file,id=mem,size=8G,mem-path=/dev/hugepages,share=on,prealloc=on -machine q35,memory-backend=mem \
  -device vhost-vsock-pci,guest-cid=7 \
  -object iothread,id=io0 -device virtio-blk-pci,drive=root,iothread=io0 -blockdev driver=file,node-name=rootf,filename=/srv/vm/ci7.qcow2,aio=io_uring,cache.direct=on -blockdev driver=qcow2,node-name=root,file=rootf \
  -device virtio-scsi-pci,id=s0 -drive if=none,id=d1,file=/dev/vg0/ci7,format=raw,cache=none,aio=native -device scsi-hd,drive=d1,bus=s0.0 \
  -serial unix:/run/ci7.serial,server=on,wait=off -monitor unix:/run/ci7.mon,server=on,wait=off \
  -qmp unix:/run/vm.qmp,server=on,wait=off
