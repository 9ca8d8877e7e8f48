# a TPM by swtpm
qemu-system-x86_64 \
  -enable-kvm -M q35 -m 4G \
  -chardev socket,id=chrtpm,path=/run/swtpm.sock -tpmdev emulator,id=tpm0,chardev=chrtpm -device tpm-tis,tpmdev=tpm0 \
  -drive file=/srv/vm/w11.qcow2,if=virtio -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
