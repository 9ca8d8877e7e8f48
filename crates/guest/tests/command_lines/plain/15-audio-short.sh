# the short form of sound
qemu-system-x86_64 \
  -enable-kvm -m 4G -audio driver=pipewire,model=hda \
  -drive file=/srv/vm/game.qcow2,if=virtio \
  -nic none -display sdl \
  -qmp unix:/run/vm.qmp,server=on,wait=off
