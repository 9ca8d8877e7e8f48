# Fedora CoreOS with its configuration
qemu-system-x86_64 \
  -enable-kvm -m 2G -cpu host -nographic \
  -drive if=virtio,file=/srv/vm/coreos.qcow2 \
  -fw_cfg name=opt/com.coreos/config,file=/srv/vm/worker.ign \
  -nic tap,ifname=tap3,script=no,downscript=no,model=virtio \
  -qmp unix:/run/vm.qmp,server=on,wait=off
