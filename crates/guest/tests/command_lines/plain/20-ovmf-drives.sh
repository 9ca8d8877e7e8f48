# UEFI by two flash drives
qemu-system-x86_64 \
  -enable-kvm -machine q35,smm=on -m 4G -cpu host \
  -global driver=cfi.pflash01,property=secure,value=on \
  -drive if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd \
  -drive if=pflash,format=raw,unit=1,file=/srv/vm/vars.fd \
  -drive file=/srv/vm/uefi.qcow2,if=virtio \
  -nic tap,ifname=tap2,script=no,downscript=no \
  -qmp unix:/run/vm.qmp,server=on,wait=off
